"""Trainings with communication hooks of DistributedDataParallel."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import (
    ddp_zero_hook,
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.optim import (
    PostLocalSGDOptimizer,
    ZeroRedundancyOptimizer,
    _apply_optimizer_in_backward,
)
from torch.nn.parallel import DistributedDataParallel
from trainings.loops import accumulate, loss_of, net, sgd, train
from trainings.state import state


def _hooked(hook, hook_state=None, steps=4, **options):
    """Train with a hook that is registered after wrapping."""
    options = {"bucket_cap_mb": 0.002, **options}
    model = DistributedDataParallel(net(), **options)
    model.register_comm_hook(hook_state, hook)
    return train(model, sgd(model), steps)


def _own_average(_, bucket):
    size = dist.get_world_size()
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / size)


def own_average(ranks):
    return _hooked(_own_average)


def own_average_of_views(ranks):
    return _hooked(_own_average, gradient_as_bucket_view=True)


def own_average_with_a_static_graph(ranks):
    return _hooked(_own_average, static_graph=True)


def own_factor(ranks):
    """The hook does not average: DDP must not divide either."""

    def hook(factor, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] * factor)

    return _hooked(hook, 0.3)


def own_hook_that_waits(ranks):
    def hook(_, bucket):
        dist.all_reduce(bucket.buffer())
        future = torch.futures.Future()
        future.set_result(bucket.buffer() / dist.get_world_size())
        return future

    return _hooked(hook)


def own_hook_with_its_own_group(ranks):
    group = dist.new_group()

    def hook(group, bucket):
        future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / group.size())

    return _hooked(hook, group)


def own_hook_that_clips_each_parameter(ranks):
    """The hook reads all that a bucket offers."""
    seen = []

    def hook(_, bucket):
        for gradient in bucket.gradients():
            gradient.clamp_(-0.05, 0.05)
        shapes = [tuple(parameter.shape) for parameter in bucket.parameters()]
        seen.append((bucket.index(), bucket.is_last(), shapes))
        return _own_average(None, bucket)

    return {**_hooked(hook), "seen": seen}


def own_hook_with_noise(ranks):
    """The hook uses the random numbers of the training."""

    def hook(_, bucket):
        bucket.buffer().add_(torch.randn_like(bucket.buffer()), alpha=0.01)
        return _own_average(None, bucket)

    return _hooked(hook)


def own_hook_with_no_sync(ranks):
    model = DistributedDataParallel(net(), bucket_cap_mb=0.002)
    model.register_comm_hook(None, _own_average)
    return accumulate(model, sgd(model), (3, 3, 1), model.no_sync)


def own_hook_with_join(ranks):
    model = DistributedDataParallel(net(), bucket_cap_mb=0.002)
    model.register_comm_hook(None, _own_average)
    with model.join(divide_by_initial_world_size=False):
        return train(model, sgd(model), 3 + ranks.rank)


def own_hook_after_an_evaluation(ranks):
    model = DistributedDataParallel(net(), bucket_cap_mb=0.002)
    with torch.no_grad():
        loss_of(model)
    model.register_comm_hook(None, _own_average)
    return train(model, sgd(model))


def allreduce_hook(ranks):
    return _hooked(default_hooks.allreduce_hook, dist.group.WORLD)


def fp16_compress_hook(ranks):
    return _hooked(default_hooks.fp16_compress_hook)


def bf16_compress_hook(ranks):
    return _hooked(default_hooks.bf16_compress_hook)


def fp16_compress_wrapper(ranks):
    return _hooked(default_hooks.fp16_compress_wrapper(_own_average))


def bf16_compress_wrapper(ranks):
    return _hooked(default_hooks.bf16_compress_wrapper(_own_average))


def fp16_compress_wrapper_of_views(ranks):
    wrapped = default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    return _hooked(wrapped, gradient_as_bucket_view=True)


def noop_hook(ranks):
    return _hooked(debugging_hooks.noop_hook)


def _builtin(kind, **options):
    model = DistributedDataParallel(net(), bucket_cap_mb=0.002, **options)
    model._register_builtin_comm_hook(kind)
    return train(model, sgd(model))


def builtin_allreduce(ranks):
    return _builtin(dist.BuiltinCommHookType.ALLREDUCE)


def builtin_fp16(ranks):
    return _builtin(dist.BuiltinCommHookType.FP16_COMPRESS)


def builtin_fp16_with_views(ranks):
    return _builtin(dist.BuiltinCommHookType.FP16_COMPRESS, gradient_as_bucket_view=True)


def _power_sgd(hook):
    """Train with one bucket: with several, ranks call the hooks' collectives in any order."""
    options = {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2}
    hook_state = powerSGD_hook.PowerSGDState(None, **options)
    return _hooked(hook, hook_state, 6, bucket_cap_mb=25)


def power_sgd(ranks):
    return _power_sgd(powerSGD_hook.powerSGD_hook)


def power_sgd_in_fp16(ranks):
    return _power_sgd(default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook))


def post_local_sgd(ranks):
    """Gradients are averaged for two steps, and parameters in every second step from then on."""
    model = DistributedDataParallel(net(), bucket_cap_mb=0.002)
    subgroup = dist.new_subgroups(1)[0]
    hook_state = post_localSGD_hook.PostLocalSGDState(dist.group.WORLD, subgroup, 2)
    model.register_comm_hook(hook_state, post_localSGD_hook.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=2, warmup_steps=2)
    optimizer = PostLocalSGDOptimizer(sgd(model), averager)
    return train(model, optimizer, 7)


def step_after_each_bucket(ranks):
    """The hook of a bucket also steps its parameters; the loop has no other step."""
    model = DistributedDataParallel(net(), bucket_cap_mb=0.002)
    model._register_fused_optim(torch.optim.SGD, lr=0.1)
    losses = []
    for _ in range(4):
        loss = loss_of(model)
        loss.backward()
        losses.append(loss.detach())
    return state([model], [], losses, 0)


def step_in_backward(ranks):
    model = net()
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    model = DistributedDataParallel(model, bucket_cap_mb=0.002)
    losses = []
    for _ in range(4):
        loss = loss_of(model)
        loss.backward()
        losses.append(loss.detach())
    return state([model], [], losses)


def hook_with_a_zero_step(ranks):
    model = DistributedDataParallel(net(), bucket_cap_mb=0.002, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, overlap_with_ddp=True, lr=0.01
    )
    hook = ddp_zero_hook.hook_with_zero_step(
        default_hooks.allreduce_hook, model, optimizer, shard_buckets=False
    )
    model.register_comm_hook(None, hook)
    losses = []
    for _ in range(5):
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return state([model], [], losses)
