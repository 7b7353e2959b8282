"""Trainings with the options and functions of Horovod."""

import horovod.torch as hvd
import torch
from torch import nn
from trainings.loops import CLASSES, INPUTS, accumulate, batch, loss_of, net, sgd, train
from trainings.state import state


def _made(model=None, *, named=True, inner=sgd, **options):
    """Return a model with the same parameters on all ranks, and its distributed optimizer."""
    model = model or net()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    if named:
        options["named_parameters"] = model.named_parameters()
    return model, hvd.DistributedOptimizer(inner(model), **options)


def named_parameters(ranks):
    return train(*_made())


def unnamed_parameters(ranks):
    return train(*_made(named=False))


def fp16_compression(ranks):
    return train(*_made(compression=hvd.Compression.fp16))


def sum_of_gradients(ranks):
    return train(*_made(op=hvd.Sum))


def predivided(ranks):
    return train(*_made(gradient_predivide_factor=2.0))


def groups(ranks):
    return train(*_made(groups=2))


def groups_of_parameters(ranks):
    model = net()
    parameters = list(model.parameters())
    return train(*_made(model, groups=[parameters[:2], parameters[2:5]]))


def backward_passes_per_step(ranks):
    """The last step comes before its last backward pass."""
    return accumulate(*_made(backward_passes_per_step=3), (3, 3, 1))


def backward_passes_per_step_of_unnamed_parameters(ranks):
    options = {"named": False, "compression": hvd.Compression.fp16}
    return accumulate(*_made(backward_passes_per_step=2, **options), (2, 2, 2))


def another_number_of_backward_passes(ranks):
    model, optimizer = _made(backward_passes_per_step=2)
    begin = accumulate(model, optimizer, (2, 2))
    optimizer.set_backward_passes_per_step(3)
    end = accumulate(model, optimizer, (3, 3))
    return {**end, "iterations": 4, "before": begin["losses"]}


def adasum(ranks):
    return train(*_made(op=hvd.Adasum))


class _Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, INPUTS, padding_idx=0, sparse=True)
        self.head = nn.Linear(INPUTS, CLASSES)

    def forward(self, words):
        return self.head(self.table(words).mean(1))


def _embedded(empty_on=(), **options):
    def loss(model):
        words = torch.randint(1, 20, (4, 3))
        if hvd.rank() in empty_on:
            words.zero_()
        return nn.functional.cross_entropy(model(words), torch.randint(0, CLASSES, (4,)))

    def inner(model):
        return torch.optim.SGD(model.parameters(), lr=0.5)

    return train(*_made(_Embedded(), inner=inner, **options), loss=loss)


def sparse_gradients(ranks):
    return _embedded()


def sparse_gradients_empty_on_one_rank(ranks):
    return _embedded(empty_on=(0,))


def sparse_gradients_as_dense(ranks):
    return _embedded(sparse_as_dense=True)


def join(ranks):
    """Later ranks have more batches."""
    model, optimizer = _made()
    losses = []
    for _ in range(3 + ranks.rank):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    last = hvd.join()
    return {**state([model], [optimizer], losses), "last": last}


def process_set_without_the_last_rank(ranks):
    """The last rank trains alone."""
    process_set = hvd.add_process_set(list(range(ranks.size - 1)))
    try:
        model = net()
        if process_set.included():
            for name, parameter in model.named_parameters():
                hvd.broadcast_(parameter.data, 0, name=name, process_set=process_set)
        optimizer = hvd.DistributedOptimizer(
            sgd(model), named_parameters=model.named_parameters(), process_set=process_set
        )
        return train(model, optimizer)
    finally:
        hvd.remove_process_set(process_set)


def process_set_for_a_part_of_the_model(ranks):
    """All ranks reduce the body, and each its own head: one set for each rank."""
    sets = [hvd.add_process_set([rank]) for rank in range(ranks.size)]
    try:
        body, head = net(), nn.Linear(CLASSES, CLASSES)
        hvd.broadcast_parameters(body.state_dict(), root_rank=0)
        optimizers = [
            hvd.DistributedOptimizer(sgd(body), named_parameters=body.named_parameters()),
            hvd.DistributedOptimizer(
                sgd(head), named_parameters=head.named_parameters(), process_set=sets[ranks.rank]
            ),
        ]
        losses = []
        for _ in range(4):
            for optimizer in optimizers:
                optimizer.zero_grad()
            inputs, targets = batch()
            loss = nn.functional.cross_entropy(head(body(inputs)), targets)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.detach())
        return state([body, head], optimizers, losses)
    finally:
        for process_set in sets:
            hvd.remove_process_set(process_set)


def clipped_after_synchronize(ranks):
    model, optimizer = _made()
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        losses.append(torch.stack([loss.detach(), norm]))
    return state([model], [optimizer], losses)


def clipped_before_the_step_synchronizes(ranks):
    """A mistake of some scripts: each rank clips its own gradient, and Horovod waits again."""
    model, optimizer = _made()
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        losses.append(loss.detach())
    return state([model], [optimizer], losses)


def no_zero_grad_between_steps(ranks):
    model, optimizer = _made()
    losses = []
    for _ in range(4):
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return state([model], [optimizer], losses)


def unused_parameters(ranks):
    """Each rank uses another branch: Horovod reduces zeros for the others."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = nn.ModuleList(nn.Linear(INPUTS, CLASSES) for _ in range(3))

        def forward(self, inputs):
            return self.branches[int(torch.randint(0, 3, ()))](inputs)

    return train(*_made(Branches()), 6)


def broadcast_optimizer_state(ranks):
    model = net()
    if ranks.rank == 0:  # as after the load of a checkpoint
        model(torch.ones(1, INPUTS)).sum().backward()
    inner = torch.optim.Adam(model.parameters(), lr=0.01)
    if ranks.rank == 0:
        inner.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(inner, root_rank=0)
    optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    begin = hvd.allreduce(torch.ones(3) * ranks.rank, name="epoch")
    optimizer.zero_grad()
    return {**train(model, optimizer), "begin": begin.tolist()}


def own_collectives(ranks):
    """The optimizer is not distributed: gradients are reduced in several ways."""
    model = net()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def reduce():
        gradients = [parameter.grad for parameter in model.parameters()]
        handles = [
            hvd.allreduce_async_(gradient, name=f"one {number}")
            for number, gradient in enumerate(gradients[:2])
        ]
        for handle in handles:
            hvd.synchronize(handle)
        hvd.grouped_allreduce_(gradients[2:4], name="group")
        gradients[4].copy_(hvd.allreduce(gradients[4], op=hvd.Sum) / ranks.size)
        for number, gradient in enumerate(gradients[5:]):
            gathered = hvd.allgather(gradient.unsqueeze(0), name=f"gathered {number}")
            gradient.copy_(gathered.mean(0))

    return train(model, sgd(model), before_step=reduce)
