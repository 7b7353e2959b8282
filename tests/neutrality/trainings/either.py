"""Trainings that work with either backend."""

import copy
import functools
import io
import warnings

import numpy as np
import torch
from timers import InThread
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from trainings.loops import CLASSES, INPUTS, batch, compiles, loss_of, net, sgd, train
from trainings.state import state


def _made(ranks, model=None, optimizer=sgd):
    """Return a distributed model and its optimizer."""
    model = ranks.wrap(model or net())
    return model, ranks.optimizer(optimizer(model), model.named_parameters())


def plain(ranks):
    return train(*_made(ranks))


# --- models ---


class _Normalized(nn.Module):
    """Has buffers, dropout, a tied weight and a frozen one."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(INPUTS, INPUTS)
        self.norm = nn.BatchNorm1d(INPUTS)
        self.drop = nn.Dropout(0.3)
        self.second = nn.Linear(INPUTS, INPUTS)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(INPUTS, INPUTS).requires_grad_(False)
        self.last = nn.Linear(INPUTS, CLASSES)

    def forward(self, inputs):
        hidden = self.drop(self.norm(self.first(inputs)).relu())
        return self.last(self.frozen(self.second(hidden)))


def normalization_dropout_tied_and_frozen_weights(ranks):
    return train(*_made(ranks, _Normalized()))


def recurrent(ranks):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.LSTM(INPUTS, 16, num_layers=2, dropout=0.2, batch_first=True)
            self.head = nn.Linear(16, CLASSES)

        def forward(self, inputs):
            return self.head(self.cells(inputs.unsqueeze(1).repeat(1, 4, 1))[0][:, -1])

    return train(*_made(ranks, Recurrent()))


def transformer(ranks):
    layer = nn.TransformerEncoderLayer(INPUTS, 3, 24, dropout=0.1, batch_first=True)
    return train(*_made(ranks, nn.Sequential(layer, nn.Linear(INPUTS, CLASSES))))


def double_precision(ranks):
    def loss(model):
        inputs, targets = batch()
        return nn.functional.cross_entropy(model(inputs.double()), targets)

    return train(*_made(ranks, net().double()), loss=loss)


# --- optimizers ---


def adam(ranks):
    def optimizer(model):
        return torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)

    return train(*_made(ranks, optimizer=optimizer))


def fused_adamw(ranks):
    def optimizer(model):
        return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)

    return train(*_made(ranks, optimizer=optimizer))


def foreach_rmsprop_maximized(ranks):
    def optimizer(model):
        return torch.optim.RMSprop(model.parameters(), lr=0.001, foreach=True, maximize=True)

    return train(*_made(ranks, optimizer=optimizer))


def parameter_groups_and_a_schedule(ranks):
    model = ranks.wrap(net())
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.01}]
    inner = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    optimizer = ranks.optimizer(inner, model.named_parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=6)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
    return state([model], [optimizer, scheduler], losses)


def zero_grad_keeps_tensors(ranks):
    model, optimizer = _made(ranks)
    losses = []
    for _ in range(4):
        model.zero_grad(set_to_none=False)
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return state([model], [optimizer], losses)


def lbfgs(ranks):
    model = ranks.wrap(net(width=8, depth=1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=3)
    losses = []
    for _ in range(3):
        given = batch()
        losses.append(optimizer.step(lambda given=given: _summed(ranks, model, given)).detach())
    return state([model], [optimizer], losses)


def lbfgs_with_line_search(ranks):
    model = ranks.wrap(net(width=8, depth=1))
    options = {"max_iter": 3, "line_search_fn": "strong_wolfe"}
    optimizer = torch.optim.LBFGS(model.parameters(), **options)
    losses = []
    for _ in range(3):
        given = batch()
        losses.append(optimizer.step(lambda given=given: _summed(ranks, model, given)).detach())
    return state([model], [optimizer], losses)


def _summed(ranks, model, given):
    """Evaluate a model in the closure of an optimizer that needs the loss of all ranks."""
    model.zero_grad()
    loss = loss_of(model, *given)
    loss.backward()
    ranks.average_gradients(model)
    return ranks.average(loss.detach())


def closure(ranks):
    model, optimizer = _made(ranks)
    losses = []

    def evaluate():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        ranks.synchronize(optimizer)
        return loss

    for _ in range(4):
        with ranks.skipped(optimizer):
            losses.append(optimizer.step(evaluate).detach())
    return state([model], [optimizer], losses)


class _SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization: the gradient at the worst point nearby."""

    def __init__(self, parameters, inner, rho=0.05):
        self.inner = inner(parameters)
        super().__init__(self.inner.param_groups, {"rho": rho})

    @torch.no_grad()
    def step(self, closure):
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        moved = [p.grad * (self.defaults["rho"] / (norm + 1e-12)) for p in parameters]
        for parameter, change in zip(parameters, moved, strict=True):
            parameter.add_(change)
        with torch.enable_grad():
            loss = closure()
        for parameter, change in zip(parameters, moved, strict=True):
            parameter.sub_(change)
        self.inner.step()
        return loss


def sam(ranks):
    model = ranks.wrap(net())
    optimizer = _SAM(list(model.parameters()), functools.partial(torch.optim.SGD, lr=0.1))
    losses = []
    for _ in range(4):
        given = batch()
        _summed(ranks, model, given)
        losses.append(optimizer.step(lambda given=given: _summed(ranks, model, given)))
    return state([model], [optimizer, optimizer.inner], losses)


def gan(ranks):
    generator, make = _made(ranks, net(depth=1), lambda m: torch.optim.Adam(m.parameters()))
    judge, learn = _made(ranks, nn.Linear(CLASSES, 1))
    likely = nn.functional.binary_cross_entropy_with_logits
    losses = []
    for _ in range(4):
        noise, targets = batch()
        real = nn.functional.one_hot(targets, CLASSES).float()
        made = generator(noise)
        learn.zero_grad()
        judged = judge(torch.cat([real, made.detach()]))
        truth = torch.cat([torch.ones(6, 1), torch.zeros(6, 1)])
        right = likely(judged, truth)
        right.backward()
        learn.step()
        judge.requires_grad_(False)
        make.zero_grad()
        inner = getattr(judge, "module", judge)
        fooled = likely(inner(made), torch.ones(6, 1))
        fooled.backward()
        make.step()
        judge.requires_grad_(True)
        losses.append(torch.stack([right.detach(), fooled.detach()]))
    return state([generator, judge], [make, learn], losses)


def two_optimizers_and_one_backward(ranks):
    model = ranks.wrap(net())
    parameters = list(model.named_parameters())
    halves = [parameters[:4], parameters[4:]]
    optimizers = [
        ranks.optimizer(torch.optim.SGD([p for _, p in half], lr=0.1), half) for half in halves
    ]
    losses = []
    for _ in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.detach())
    return state([model], optimizers, losses)


# --- precision ---


def bf16(ranks):
    def loss(model):
        inputs, targets = batch()
        return nn.functional.cross_entropy(model(inputs.bfloat16()).float(), targets)

    return train(*_made(ranks, net().bfloat16()), loss=loss)


def autocast_bf16(ranks):
    def loss(model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_of(model)

    return train(*_made(ranks), loss=loss)


def amp_with_a_scaler(ranks):
    """The scale doubles after two steps, and an infinite gradient halves it and skips a step."""
    model, optimizer = _made(ranks)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    losses, scales = [], []
    for number in range(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_of(model)
        if number == 3:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        ranks.synchronize(optimizer)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        with ranks.skipped(optimizer):
            scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        scales.append(scaler.get_scale())
    return {**state([model], [optimizer, scaler], losses), "scales": scales}


def clipped(ranks):
    model, optimizer = _made(ranks)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        ranks.synchronize(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1, error_if_nonfinite=True)
        nn.utils.clip_grad_value_(model.parameters(), 0.02)
        with ranks.skipped(optimizer):
            optimizer.step()
        losses.append(torch.stack([loss.detach(), norm]))
    return state([model], [optimizer], losses)


# --- compilation ---


class _Layers(nn.Module):
    """The compiler skips the `forward` of `nn.Sequential` itself."""

    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, inputs):
        return self.layers(inputs)


@compiles
def compiled(ranks):
    model, optimizer = _made(ranks)
    called = torch.compile(model, backend="aot_eager")
    return train(model, optimizer, loss=lambda _: loss_of(called))


@compiles
def compiled_before_it_is_wrapped(ranks):
    return train(*_made(ranks, torch.compile(net(), backend="eager")))


@compiles
def compiled_in_place_without_graph_breaks(ranks):
    model = _Layers()
    model.compile(fullgraph=True, backend="aot_eager")
    return train(*_made(ranks, model))


@compiles
def compiled_layers_with_dynamic_shapes(ranks):
    model = net()
    for layer in model:
        layer.compile(dynamic=True, backend="eager")
    sizes = iter((3, 4, 5, 6, 7))
    return train(*_made(ranks, model), 5, loss=lambda model: loss_of(model, *batch(next(sizes))))


@compiles
def compiled_by_inductor(ranks):
    model, optimizer = _made(ranks)
    called = torch.compile(model)
    return train(model, optimizer, loss=lambda _: loss_of(called))


@compiles
def compiled_step(ranks):
    model, optimizer = _made(ranks)

    @torch.compile(backend="aot_eager")
    def step():
        optimizer.step()

    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        ranks.synchronize(optimizer)
        with ranks.skipped(optimizer):
            step()
        losses.append(loss.detach())
    return state([model], [optimizer], losses)


@compiles
def compiled_loss_and_checkpoints(ranks):
    model = _Checkpointed(use_reentrant=False)
    model, optimizer = _made(ranks, model)
    loss = torch.compile(loss_of, backend="aot_eager")
    return train(model, optimizer, loss=loss)


# --- the backward pass ---


class _Checkpointed(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options
        self.first, self.second = net(depth=1), nn.Sequential(nn.Dropout(0.2), nn.Linear(5, 5))

    def forward(self, inputs):
        # reentrant checkpoints need an input that requires a gradient
        hidden = checkpoint(self.first, inputs.requires_grad_(), **self.options)
        return checkpoint(self.second, hidden, **self.options)


def activation_checkpoints(ranks):
    return train(*_made(ranks, _Checkpointed(use_reentrant=False)))


def reentrant_activation_checkpoints(ranks):
    return train(*_made(ranks, _Checkpointed(use_reentrant=True)))


def sequential_activation_checkpoints(ranks):
    class Segments(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = net(depth=3)

        def forward(self, inputs):
            return checkpoint_sequential(self.layers, 3, inputs, use_reentrant=False)

    return train(*_made(ranks, Segments()))


def saved_tensors_elsewhere(ranks):
    def loss(model):
        with torch.autograd.graph.save_on_cpu():
            return loss_of(model)

    return train(*_made(ranks), loss=loss)


def two_losses_of_one_forward(ranks):
    def loss(model):
        inputs, targets = batch()
        output = model(inputs)
        return nn.functional.cross_entropy(output, targets) + output.square().mean() / 3

    return train(*_made(ranks), loss=loss)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given):
        return given * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def own_autograd_function(ranks):
    def loss(model):
        return _Scaled.apply(loss_of(model))

    return train(*_made(ranks), loss=loss)


def anomaly_detection(ranks):
    with torch.autograd.set_detect_anomaly(True):
        return train(*_made(ranks))


def deterministic_algorithms(ranks):
    torch.use_deterministic_algorithms(True)
    try:
        return train(*_made(ranks))
    finally:
        torch.use_deterministic_algorithms(False)


def default_dtype_of_double(ranks):
    torch.set_default_dtype(torch.float64)
    try:
        return train(*_made(ranks))
    finally:
        torch.set_default_dtype(torch.float32)


def warnings_are_errors(ranks):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return train(*_made(ranks))


def gradient_penalty(ranks):
    """A second derivative; with DDP the first one bypasses the wrapped model."""
    model, optimizer = _made(ranks)
    inner = getattr(model, "module", model)

    def loss(model):
        inputs, targets = batch()
        given = inputs.clone().requires_grad_()
        (slope,) = torch.autograd.grad(inner(given).sum(), given, create_graph=True)
        return loss_of(model, inputs, targets) + slope.square().mean()

    return train(model, optimizer, loss=loss)


# --- hooks of the user ---


def hooks_on_modules_and_parameters(ranks):
    model = net()
    called = []

    def scale(_module, _inputs, output):
        called.append("forward")
        return output * 1.5

    def shift(_module, inputs):
        called.append("before the forward")
        return (inputs[0] + 0.25,)

    def half(_module, gradients, _outputs):
        called.append("backward")
        return tuple(gradient / 2 for gradient in gradients)

    model[2].register_forward_hook(scale)
    model[2].register_forward_pre_hook(shift)
    model[4].register_full_backward_hook(half)
    model[4].register_full_backward_pre_hook(lambda _, gradients: called.append("before backward"))
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.75)
        parameter.register_post_accumulate_grad_hook(lambda _: called.append("accumulated"))
    model, optimizer = _made(ranks, model)
    optimizer.register_step_pre_hook(lambda *_: called.append("before the step"))
    optimizer.register_step_post_hook(lambda *_: called.append("after the step"))
    return {**train(model, optimizer), "called": called}


def hooks_on_all_modules_and_optimizers(ranks):
    called = []
    forward = nn.modules.module.register_module_forward_hook
    handles = [
        forward(lambda module, _inputs, _output: called.append(type(module).__name__)),
        nn.modules.module.register_module_full_backward_hook(
            lambda module, _inputs, _outputs: called.append(f"{type(module).__name__} backward")
        ),
        register_optimizer_step_pre_hook(lambda *_: called.append("step")),
    ]
    try:
        return {**train(*_made(ranks)), "called": called}
    finally:
        for handle in handles:
            handle.remove()


def noise_from_a_hook(ranks):
    """The hook uses the random numbers of the training."""
    model = net()
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad + 0.01 * torch.randn_like(grad))
    return train(*_made(ranks, model))


def replaced_forward_and_step(ranks):
    model, optimizer = _made(ranks)
    forward, step = model.forward, optimizer.step
    model.forward = lambda inputs: forward(inputs) * 1.25

    def clipped_step(*args, **options):
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        return step(*args, **options)

    optimizer.step = clipped_step
    return train(model, optimizer, before_step=lambda: ranks.synchronize(optimizer))


# --- around the training ---


def in_a_thread(ranks):
    return InThread(train, *_made(ranks)).join()


def evaluation_between_steps(ranks):
    model, optimizer = _made(ranks, _Normalized())
    inner = getattr(model, "module", model)
    losses, scores = [], []
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        inner.eval()
        with torch.inference_mode():
            scores.append(ranks.average(loss_of(inner).clone()).item())
        inner.train()
        losses.append(loss.detach())
    return {**state([model], [optimizer], losses), "scores": scores}


def a_teacher_and_an_average(ranks):
    model, optimizer = _made(ranks)
    inner = getattr(model, "module", model)
    teacher = copy.deepcopy(inner).eval()
    average = torch.optim.swa_utils.AveragedModel(inner)
    losses = []
    for _ in range(4):
        inputs, targets = batch()
        with torch.no_grad():
            likely = teacher(inputs).softmax(-1)
        optimizer.zero_grad()
        output = model(inputs)
        loss = nn.functional.cross_entropy(output, targets)
        loss = loss + nn.functional.kl_div(output.log_softmax(-1), likely, reduction="batchmean")
        loss.backward()
        optimizer.step()
        average.update_parameters(inner)
        losses.append(loss.detach())
    return state([model, average], [optimizer], losses)


def saved_and_loaded(ranks):
    """In the middle of the training, into a new model and a new optimizer."""
    model, optimizer = _made(ranks)
    begin = train(model, optimizer, 2)
    file = io.BytesIO()
    inner = getattr(model, "module", model)
    torch.save({"model": inner.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    new = net()
    new.load_state_dict(saved["model"])
    model, optimizer = _made(ranks, new)
    optimizer.load_state_dict(saved["optimizer"])
    end = train(model, optimizer, 2)
    return {**end, "iterations": 4, "before": begin["losses"]}


def two_models_in_turn(ranks):
    first, second = _made(ranks), _made(ranks, net(width=8))
    begin = train(*first, 2)
    middle = train(*second, 2)
    end = train(*first, 2)
    return {**end, "iterations": 6, "before": [begin["losses"], middle["losses"]]}


def a_profiler(ranks):
    model, optimizer = _made(ranks)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        return train(model, optimizer, before_step=profiler.step)


# --- data ---


def _loaded(ranks, **options):
    """Train two epochs with a loader."""
    data = TensorDataset(torch.randn(40, INPUTS), torch.randint(0, CLASSES, (40,)))
    sampler = DistributedSampler(data, ranks.size, ranks.rank, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler, drop_last=True, **options)
    model, optimizer = _made(ranks)
    losses, numbers = [], []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_of(model, inputs, targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            numbers.append(np.random.rand())
    return {**state([model], [optimizer], losses), "numbers": numbers}


def loader(ranks):
    return _loaded(ranks)


def loader_with_forked_workers(ranks):
    return _loaded(ranks, num_workers=2, multiprocessing_context="fork")


def loader_with_spawned_workers(ranks):
    return _loaded(ranks, num_workers=1, multiprocessing_context="spawn", persistent_workers=True)


def loader_with_prefetching_and_pinning(ranks):
    return _loaded(ranks, num_workers=1, prefetch_factor=3, pin_memory=True)


def accumulation(ranks):
    """Gradients are reduced in each backward pass with DDP, and once with Horovod."""
    model = ranks.wrap(net())
    optimizer = sgd(model)
    losses = []
    for size in (3, 3, 1):
        optimizer.zero_grad()
        for _ in range(size):
            loss = loss_of(model) / size
            loss.backward()
        ranks.average_gradients(model)
        optimizer.step()
        losses.append(loss.detach())
    return state([model], [optimizer], losses)
