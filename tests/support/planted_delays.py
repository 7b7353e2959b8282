"""A training in which one rank is late: by how much, in which phase, and in which iterations."""

MODEL = """
import time, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)  # the test VMs share their cores
slept = []
def nap(seconds):
    began = time.perf_counter()
    time.sleep(seconds)
    slept.append((time.perf_counter() - began) * 1e6)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)])
        self.nap = 0.0
    def forward(self, x):
        if self.nap: nap(self.nap)
        return self.layers(x)
model = Net()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1e-3), named_parameters=model.named_parameters())
class Items(torch.utils.data.Dataset):
    pause = 0.0
    def __len__(self): return 1
    def __getitem__(self, place):
        if self.pause: nap(self.pause)
        return torch.ones(32, 128)
items = Items()
def loader(pause):
    items.pause = pause
    return iter(torch.utils.data.DataLoader(items, batch_size=None))
def train(n, late=None, where="", when=(), seconds=0.020):
    slept.clear()
    for i in range(n):
        pause = seconds if rank == late and i in when else 0.0
        x = next(loader(pause if where == "data" else 0.0))
        optimizer.zero_grad()
        model.nap = pause if where == "forward" else 0.0
        model(x).sum().backward()
        optimizer.synchronize()
        if pause and where == "other": nap(pause)
        with optimizer.skip_synchronize():
            optimizer.step()
    return slept[:]
def train_and_measure_queueing(n):
    found = []
    for i in range(n):
        before = queued_us()
        train(1)
        found.append(queued_us() - before)
    return found
train(5)
"""
KINDS = {"data": "slow data", "forward": "slow compute", "other": "slow compute"}
"""The kind of a straggler, by the phase of its delay."""
