"""Trainings whose parameters, gradients or optimizer states are divided among ranks."""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from trainings.loops import CLASSES, INPUTS, accumulate, compiles, loss_of, net, sgd, train
from trainings.state import state

CPU = torch.device("cpu")


def _fsdp1(model=None, **options):
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=200)
    options = {"auto_wrap_policy": policy, "device_id": CPU, **options}
    return FullyShardedDataParallel(model or net(), **options)


def fsdp1(ranks):
    model = _fsdp1()
    return train(model, sgd(model))


def fsdp1_shards_gradients_only(ranks):
    strategy = ShardingStrategy.SHARD_GRAD_OP
    model = _fsdp1(sharding_strategy=strategy, use_orig_params=True)
    return train(model, torch.optim.Adam(model.parameters(), lr=0.01))


def fsdp1_shards_nothing(ranks):
    model = _fsdp1(sharding_strategy=ShardingStrategy.NO_SHARD)
    return train(model, sgd(model))


def fsdp1_mixed_precision(ranks):
    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = _fsdp1(mixed_precision=precision)
    return train(model, sgd(model))


def fsdp1_clips(ranks):
    model = _fsdp1()
    return train(model, sgd(model), before_step=lambda: model.clip_grad_norm_(0.1))


def fsdp1_accumulates(ranks):
    model = _fsdp1()
    return accumulate(model, sgd(model), (3, 3, 1), model.no_sync)


def _fsdp2(**options):
    model = net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), **options)
    return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), **options)


def fsdp2(ranks):
    model = _fsdp2()
    return train(model, sgd(model))


def fsdp2_keeps_parameters_after_forward(ranks):
    model = _fsdp2(reshard_after_forward=False)
    return train(model, torch.optim.AdamW(model.parameters(), lr=0.01))


def fsdp2_mixed_precision(ranks):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = _fsdp2(mp_policy=policy)
    return train(model, sgd(model))


def fsdp2_clips(ranks):
    model = _fsdp2()

    def clip():
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    return train(model, sgd(model), before_step=clip)


def fsdp2_accumulates(ranks):
    model = _fsdp2()
    optimizer = sgd(model)

    def loss(model):
        model.set_requires_gradient_sync(False)
        for _ in range(2):
            (loss_of(model) / 3).backward()
        model.set_requires_gradient_sync(True)
        return loss_of(model) / 3

    return train(model, optimizer, loss=loss)


@compiles
def fsdp2_compiled(ranks):
    model = _fsdp2()
    model.compile(backend="aot_eager")
    return train(model, sgd(model))


def zero_redundancy(ranks):
    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    return _trained(model, optimizer)


def zero_redundancy_with_views(ranks):
    model = DistributedDataParallel(net(), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, lr=0.01
    )
    return _trained(model, optimizer)


def _trained(model, optimizer):
    """Train, and return the state with this rank's part of the optimizer's state."""
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return state([model], [optimizer.optim], losses)


def tensor_parallel(ranks):
    mesh = init_device_mesh("cpu", (ranks.size,))
    model = nn.Sequential(nn.Linear(INPUTS, 24), nn.Tanh(), nn.Linear(24, CLASSES))
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False))
