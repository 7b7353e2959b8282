"""The backends and launchers over which tests run the same behaviours.

A backend is an entry in `BACKENDS`, and a launcher one in `LAUNCHERS`: every test that
`parametrize` parametrizes then runs over it.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ipcluster
import ipyparallel
import mpi
import pytest
import slurm
from levels import in_soak
from timers import FAR_S, eventually
from vm_sets import vms

from workbench.testbed import why_not

WITHOUT_HOROVOD = str(Path(__file__).parent / "without_horovod")
"""A folder that hides Horovod from the Python whose ``PYTHONPATH`` it is in."""

_BEGIN = """
import ctypes, os, psutil, resource, signal, sys, threading, time
import torch
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
def train(steps, late=None):
    torch.manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        result = model(torch.randn(4, 32))
        if rank == late: time.sleep(0.3)
        result.square().sum().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
"""
BYTES = 4 * (32 * 64 + 64 + 64 * 8 + 8)
"""Of the gradients of the model."""
_HOROVOD = """
import horovod.torch as hvd
def total(name="met", tensor=None):
    given = torch.ones(1) if tensor is None else tensor
    return float(hvd.allreduce(given, op=hvd.Sum, name=name).reshape(-1)[0])
def broadcast(name="met"):
    hvd.broadcast(torch.ones(1), 0, name=name)
def leave():
    hvd.shutdown()
def make():
    global model, optimizer
    model = net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters())
def group_total(ranks):
    global group
    group = hvd.add_process_set(ranks)
    if rank not in ranks: return None
    return float(hvd.allreduce(torch.ones(8), op=hvd.Sum, name="pair", process_set=group)[0])
"""
_DYNAMIC = "os.environ['HOROVOD_DYNAMIC_PROCESS_SETS'] = '1'; hvd.shutdown()"
_HOROVOD_FAILS = """
import horovod.torch as hvd
real = hvd.init
def init(*args, **options):
    hvd.init = real
    raise ValueError("Horovod initialization failed: boom")
hvd.init = init
"""
_PATIENT = """
import workbench.rank.backends.process_groups
workbench.rank.backends.process_groups.FORM_S = 600.0
"""
_DDP = """
import torch.distributed as dist
def total(name="", tensor=None):
    given = torch.ones(1) if tensor is None else tensor
    dist.all_reduce(given)
    return float(given.reshape(-1)[0])
def broadcast(name=""):
    dist.broadcast(torch.ones(1), 0)
def leave():
    dist.destroy_process_group()
def make():
    global model, optimizer
    model = torch.nn.parallel.DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def group_total(ranks):
    global group
    group = dist.new_group(ranks)
    if rank not in ranks: return None
    given = torch.ones(8)
    dist.all_reduce(given, group=group)
    return float(given[0])
"""
_DDP_FAILS = """
import torch.distributed as dist
real = dist.TCPStore
def connect(*args, **options):
    dist.TCPStore = real
    raise RuntimeError("the store: boom")
dist.TCPStore = connect
"""


@dataclass(frozen=True)
class BackendCase:
    """A backend in tests.

    Attributes
    ----------
    cells
        A cell that defines functions, the same for each backend: ``total(name, tensor)`` sums over
        all ranks, and ``broadcast(name)`` sends from rank 0; ``make()`` makes a model and its
        optimizer, with which ``train(steps, late)`` trains; ``group_total(ranks)`` sums over a
        group that it makes; and ``leave()`` leaves the ring.
    groups
        A cell after which ``group_total`` can be called.
    patient
        Code after which a rank waits long for others that form a ring: what ends early, was freed.
    init_fails
        Code that makes the next attempt of a rank to join a ring fail with "boom".
    variable
        The variable that has the library's module.
    total, broadcast
        How the wait in ``total("met")`` and in ``broadcast("met")`` is shown, as a regular
        expression.
    mismatches
        What is said where the shapes of a collective differ between ranks, and where the dtypes
        do, as regular expressions.
    mismatch_ends
        Whether a rank ends then.
    by
        Who calls the collectives of the training, as it is recorded.
    environment
        Variables with which the ranks are started.
    """

    name: str
    cells: str
    groups: str
    patient: str
    init_fails: str
    variable: str
    total: str
    broadcast: str
    mismatches: tuple[str, str]
    mismatch_ends: bool
    by: str
    environment: dict[str, str]

    def __str__(self) -> str:
        return self.name


_ABORTED = r"SIGABRT \(in 'all_reduce \d+' with (Float|Double) .*same shape and dtype"

BACKENDS = {
    "horovod": BackendCase(
        "horovod", _BEGIN + _HOROVOD, _DYNAMIC, "", _HOROVOD_FAILS, "hvd", "'met'", "'met'",
        ("(?i)mismatched.*shape", "(?i)mismatched data types"), False, "optimizer",
        {"PYTHONPATH": ""},  # not that of the fixture of another backend, which may not have ended
    ),
    "ddp": BackendCase(
        "ddp", _BEGIN + _PATIENT + _DDP, "", _PATIENT, _DDP_FAILS, "dist",
        r"'all_reduce \d+'", r"'broadcast \d+'",
        (_ABORTED, _ABORTED), True, "ddp", {"PYTHONPATH": WITHOUT_HOROVOD},
    ),
}  # fmt: skip


@contextmanager
def _two_vms() -> Iterator[dict[str, Any]]:
    _skip(why_not())
    with vms(2, gbps=1.0) as machines:
        yield {"hosts": machines.hosts((2, 1)), "ssh_config": str(machines.ssh_config)}


@contextmanager
def _mpi() -> Iterator[dict[str, Any]]:
    _skip(mpi.why_not())
    with _two_vms() as options:
        yield options


@contextmanager
def _slurm() -> Iterator[dict[str, Any]]:
    _skip(slurm.why_not())
    with slurm.running():
        yield {"n": 3, "nodes": 2}


@contextmanager
def _existing() -> Iterator[dict[str, Any]]:
    _skip(why_not())
    with vms(2, gbps=1.0) as machines, ipcluster.running(machines.kernel_address) as engines:
        with contextlib.closing(ipyparallel.Client(str(engines.file))) as client:
            for count, name in enumerate(("vm1", "vm1", "vm2"), 1):  # ranks are in this order
                engines.add(partial(machines.inside, name))
                assert eventually(lambda count=count: len(client.ids) == count)
        yield {"n": 3, "connection_file": str(engines.file), "start_timeout_s": FAR_S}


def _skip(reason: str | None) -> None:
    if reason is not None:
        pytest.skip(reason)


LAUNCHERS: dict[str, Callable[[], contextlib.AbstractContextManager[dict[str, Any]]]] = {
    "local": lambda: contextlib.nullcontext({"n": 3}),
    "ssh": _two_vms,
    "mpi": _mpi,
    "slurm": _slurm,
    "existing": _existing,
}
"""The options of a cluster of three ranks, while the block runs; it skips the test with a reason
where the launcher cannot be used."""


@dataclass(frozen=True)
class Combination:
    """A backend and a launcher.

    Attributes
    ----------
    backend
        The backend.
    launcher
        The name of the launcher.
    """

    backend: BackendCase
    launcher: str

    def __str__(self) -> str:
        return f"{self.backend}-{self.launcher}"

    @contextmanager
    def options(self) -> Iterator[dict[str, Any]]:
        """Give the options of a cluster, and have its ranks started in the right environment."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.backend.environment.items():
                patch.setenv(name, value)
            with LAUNCHERS[self.launcher]() as options:
                yield {"backend": self.backend.name, "launcher": self.launcher, **options}


COMBINATIONS = [
    Combination(backend, launcher)
    for launcher in LAUNCHERS
    for backend in BACKENDS.values()
    # its ranks are forked as over ssh, where both backends are tested
    if launcher != "existing" or backend.name == "horovod"
]


LOCAL = {str(combination) for combination in COMBINATIONS if combination.launcher == "local"}
"""The combinations over which `make test` runs all behaviours."""


ALSO_OVER_SSH = LOCAL | {"horovod-ssh"}
"""`tests/launchers` and `tests/cluster/test_mpi_launcher.py` test the other launchers."""


def over_ssh(function):
    """Have `make test` run a test over ssh too."""
    function.over_ssh = True
    return function


def parametrize(metafunc, names=LOCAL):
    """Parametrize the fixture `case` with every combination.

    Those that are not in `names`, or in `ALSO_OVER_SSH` if the test is `over_ssh`, are left to
    `make soak`.
    """
    if "case" not in metafunc.fixturenames:
        return
    if getattr(metafunc.function, "over_ssh", False):
        names = ALSO_OVER_SSH
    cases = [
        combination if str(combination) in names else in_soak(combination)
        for combination in COMBINATIONS
    ]
    metafunc.parametrize("case", cases, ids=str, indirect=True, scope="module")
