"""Cells of these tests."""

SUM = "import torch; x = torch.ones(1); dist.all_reduce(x); (globals().get('kept'), float(x))"
SETUP = "import os, signal, sys, time, torch\nkept = rank * 10"
TRAIN = """
from torch import nn
from torch.nn.parallel import DistributedDataParallel
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
def train(model, steps=5):
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 32)).square().sum().backward()
        optimizer.step()
def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
"""
