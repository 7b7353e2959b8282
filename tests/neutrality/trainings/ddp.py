"""Trainings with the options and modes of PyTorch's DistributedDataParallel."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from trainings.loops import CLASSES, INPUTS, accumulate, batch, compiles, loss_of, net, sgd, train
from trainings.state import state

SMALL = 0.002
"""The size of buckets in MB so that the model above has several."""


def _trained(model=None, steps=4, **options):
    model = DistributedDataParallel(model or net(), **options)
    return train(model, sgd(model), steps)


def one_bucket(ranks):
    return _trained()


def small_buckets(ranks):
    return _trained(bucket_cap_mb=SMALL)


def a_bucket_for_each_tensor(ranks):
    return _trained(bucket_cap_mb=0.00001)


def large_tensors(ranks):
    return _trained(nn.Sequential(nn.Linear(INPUTS, 300), nn.Tanh(), nn.Linear(300, CLASSES)))


def gradient_as_bucket_view(ranks):
    return _trained(gradient_as_bucket_view=True)


def gradient_as_bucket_view_in_small_buckets(ranks):
    model = DistributedDataParallel(net(), gradient_as_bucket_view=True, bucket_cap_mb=SMALL)
    optimizer = sgd(model)
    losses = []
    for _ in range(4):
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return state([model], [optimizer], losses)


def static_graph(ranks):
    return _trained(static_graph=True, bucket_cap_mb=SMALL)


class _Branches(nn.Module):
    """Uses one of its branches, by the random numbers of the rank or always the first one."""

    def __init__(self, at_random=True):
        super().__init__()
        self.at_random = at_random
        self.branches = nn.ModuleList(nn.Linear(INPUTS, CLASSES) for _ in range(3))
        self.shared = nn.Linear(CLASSES, CLASSES)

    def forward(self, inputs):
        number = int(torch.randint(0, 3, ())) if self.at_random else 0
        return self.shared(self.branches[number](inputs))


def static_graph_with_unused_parameters(ranks):
    return _trained(_Branches(at_random=False), static_graph=True, gradient_as_bucket_view=True)


def static_graph_with_activation_checkpoints(ranks):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, CLASSES)

        def forward(self, inputs):
            inputs.requires_grad_()
            for _ in range(2):
                inputs = torch.utils.checkpoint.checkpoint(self.layer, inputs, use_reentrant=True)
            return self.head(inputs)

    return _trained(Twice(), static_graph=True)


def find_unused_parameters(ranks):
    return _trained(_Branches(), 6, find_unused_parameters=True)


def find_unused_parameters_in_small_buckets(ranks):
    options = {"find_unused_parameters": True, "gradient_as_bucket_view": True}
    return _trained(_Branches(), 6, bucket_cap_mb=0.0001, **options)


def skip_unused_parameters(ranks):
    options = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
    return _trained(_Branches(at_random=False), **options)


def no_sync(ranks):
    """The last group of batches is incomplete."""
    model = DistributedDataParallel(net())
    return accumulate(model, sgd(model), (3, 3, 2), model.no_sync)


def no_sync_with_views_in_small_buckets(ranks):
    model = DistributedDataParallel(net(), gradient_as_bucket_view=True, bucket_cap_mb=SMALL)
    return accumulate(model, sgd(model), (2, 2, 1), model.no_sync)


def no_sync_with_unused_parameters(ranks):
    model = DistributedDataParallel(_Branches(), find_unused_parameters=True)
    return accumulate(model, sgd(model), (3, 3, 1), model.no_sync)


def _joined(ranks, model, optimizer, steps=None, **options):
    """Train with more batches on each later rank."""
    with model.join(**options):
        return train(model, optimizer, 3 + ranks.rank if steps is None else steps)


def join(ranks):
    model = DistributedDataParallel(net(), bucket_cap_mb=SMALL)
    return _joined(ranks, model, sgd(model), divide_by_initial_world_size=True)


def join_divided_by_the_remaining_ranks(ranks):
    model = DistributedDataParallel(net(), bucket_cap_mb=SMALL)
    return _joined(ranks, model, sgd(model), divide_by_initial_world_size=False)


def join_with_unused_parameters(ranks):
    model = DistributedDataParallel(_Branches(), find_unused_parameters=True)
    return _joined(ranks, model, sgd(model), divide_by_initial_world_size=False)


def join_without_any_batch_on_rank_0(ranks):
    model = DistributedDataParallel(net(), gradient_as_bucket_view=True)
    return _joined(ranks, model, sgd(model), 3 if ranks.rank else 0)


def join_that_is_disabled(ranks):
    model = DistributedDataParallel(net())
    return _joined(ranks, model, sgd(model), 3, enable=False)


def join_that_ends_at_the_first(ranks):
    """The ranks that still have batches get an error, and keep what they have trained."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    losses = []
    try:
        with model.join(throw_on_early_termination=True):
            for _ in range(3 + ranks.rank):
                optimizer.zero_grad()
                loss = loss_of(model)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
    except RuntimeError as error:
        losses.append(torch.tensor(len(str(error))))
    return state([model], [optimizer], losses, 3)


class _Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, INPUTS, padding_idx=0, sparse=True)
        self.head = nn.Linear(INPUTS, CLASSES)

    def forward(self, words):
        return self.head(self.table(words).mean(1))


def _embedded(empty_on=()):
    model = DistributedDataParallel(_Embedded(), bucket_cap_mb=SMALL)

    def loss(model):
        words = torch.randint(1, 20, (4, 3))
        if dist.get_rank() in empty_on:
            words.zero_()
        return nn.functional.cross_entropy(model(words), torch.randint(0, CLASSES, (4,)))

    return train(model, torch.optim.SGD(model.parameters(), lr=0.5), loss=loss)


def sparse_gradients(ranks):
    return _embedded()


def sparse_gradients_empty_on_one_rank(ranks):
    return _embedded(empty_on=(0,))


def sparse_gradients_empty_on_all_ranks(ranks):
    return _embedded(empty_on=range(ranks.size))


def sparse_adam(ranks):
    table = DistributedDataParallel(nn.Embedding(20, CLASSES, sparse=True))
    optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=0.1)

    def loss(model):
        words = torch.randint(0, 20, (6,))
        return nn.functional.cross_entropy(model(words), torch.randint(0, CLASSES, (6,)))

    return train(table, optimizer, loss=loss)


def convolution_channels_last(ranks):
    model = nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 8, 2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Flatten(), nn.Linear(72, CLASSES),
    )  # fmt: skip
    return _trained(model.to(memory_format=torch.channels_last))


def buffers_of_each_rank(ranks):
    model = nn.Sequential(nn.Linear(INPUTS, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
    return _trained(model, broadcast_buffers=False)


def frozen_later(ranks):
    """Half of the model is frozen between two steps, and wrapped again."""
    inner = net()
    model = DistributedDataParallel(inner)
    begin = train(model, sgd(model), 2)
    for parameter in list(inner.parameters())[:4]:
        parameter.requires_grad_(False)
    model = DistributedDataParallel(inner)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    end = train(model, torch.optim.SGD(trained, lr=0.1), 2)
    return {**end, "iterations": 4, "before": begin["losses"]}


def copied(ranks):
    """A copy of a wrapped model is trained, and the original afterwards."""
    model = DistributedDataParallel(net())
    begin = train(model, sgd(model), 2)
    other = copy.deepcopy(model)
    middle = train(other, sgd(other), 2)
    end = train(model, sgd(model), 2)
    return {**end, "iterations": 6, "before": [begin["losses"], middle["losses"]]}


def a_group_of_two_ranks(ranks):
    """Of three ranks the last trains alone; the gradients of the others are averaged."""
    groups = [dist.new_group(members) for members in ([0, 1], list(range(2, ranks.size)) or [0])]
    model = DistributedDataParallel(net(), process_group=groups[ranks.rank > 1])
    state_at_the_end = train(model, sgd(model))
    dist.barrier()
    return state_at_the_end


def two_models_in_one_backward(ranks):
    models = [DistributedDataParallel(net(width=8 + 8 * number)) for number in range(2)]
    optimizers = [sgd(model) for model in models]
    losses = []
    for _ in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        inputs, targets = batch()
        loss = sum(loss_of(model, inputs, targets) for model in models)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.detach())
    return state(models, optimizers, losses)


def a_step_for_each_parameter_in_backward(ranks):
    """An optimizer for each parameter, whose gradient is reduced in a hook of the parameter."""
    model = net()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

    def step(parameter):
        dist.all_reduce(parameter.grad, dist.ReduceOp.SUM)
        parameter.grad /= ranks.size
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    losses = []
    for _ in range(4):
        loss = loss_of(model)
        loss.backward()
        losses.append(loss.detach())
    return state([model], list(optimizers.values()), losses)


def own_collectives(ranks):
    """The model is not wrapped: gradients are reduced in several ways."""
    model = net()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)

    def reduce():
        gradients = [parameter.grad for parameter in model.parameters()]
        works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients[:3]]
        for work in works:
            work.wait()
        flat = torch.cat([gradient.flatten() for gradient in gradients[3:]])
        gathered = [torch.empty_like(flat) for _ in range(ranks.size)]
        dist.all_gather(gathered, flat)
        for gradient, total in zip(
            gradients[3:],
            torch.stack(gathered).sum(0).split([g.numel() for g in gradients[3:]]),
            strict=True,
        ):
            gradient.copy_(total.view_as(gradient))
        for gradient in gradients:
            gradient.div_(ranks.size)

    return train(model, sgd(model), before_step=reduce)


def mixed_precision(ranks):
    from torch.distributed.fsdp import MixedPrecision  # an import that takes long

    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    return _trained(mixed_precision=precision)


@compiles
def compiled_with_the_reducer_in_python(ranks):
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        model = DistributedDataParallel(net())
        called = torch.compile(model, backend="aot_eager")
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
            return train(model, sgd(model), loss=lambda _: loss_of(called))


@compiles
def compiled_without_its_own_buckets(ranks):
    with torch._dynamo.config.patch(optimize_ddp=False):
        model = DistributedDataParallel(net(), bucket_cap_mb=SMALL)
        called = torch.compile(model, backend="aot_eager")
        return train(model, sgd(model), loss=lambda _: loss_of(called))


@compiles
def compiled_with_several_buckets(ranks):
    """PyTorch compiles a graph for each bucket; the first one may not be larger than the others."""
    model = DistributedDataParallel(net(width=400), bucket_cap_mb=1)
    called = torch.compile(model, backend="aot_eager")
    return train(model, sgd(model), 3, loss=lambda _: loss_of(called))
