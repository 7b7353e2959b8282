"""No process that forks ranks touches CUDA: its children could not use a GPU any more.

A build of PyTorch without CUDA does not show this, so functions that initialize CUDA, or after
which PyTorch refuses CUDA in forked processes, raise an error in all processes but ranks.
"""

import contextlib
import dataclasses
import os
import sys
import time
from pathlib import Path

import pytest
from clusters import quiet
from combinations import BACKENDS, parametrize
from import_hooks import after_import

import workbench as wb
from workbench.cluster import warm
from workbench.hosts import parse_hosts

HOOK = """
import os, sys, traceback

NAMES = {{
    "is_available", "device_count", "init", "_lazy_init", "current_device", "set_device",
    "synchronize", "get_device_name", "get_device_properties", "get_device_capability",
    "mem_get_info", "memory_stats", "memory_allocated", "memory_reserved", "current_stream",
    "default_stream", "is_bf16_supported", "can_device_access_peer", "get_rng_state",
    "_get_nvml_device_index", "device_memory_used",
}}

def guarded(name, function):
    def call(*arguments, **options):
        if sys.argv[:1] != ["ipengine"]:  # a rank, from its fork on
            with open({path!r}, "a") as file:
                file.write("".join(traceback.format_stack()) + name + "\\n")
            raise RuntimeError(name + " was called in a process that forks ranks")
        return function(*arguments, **options)
    return call

def change(module):
    for name in NAMES & vars(module).keys():
        setattr(module, name, guarded(name, getattr(module, name)))
    native = sys.modules["torch._C"]
    for name in [name for name in vars(native) if name.startswith("_cuda_")]:
        if callable(function := getattr(native, name)):
            setattr(native, name, guarded(name, function))
    with open({path!r} + ".guarded", "a") as file:
        file.write(str(os.getpid()) + "\\n")
"""


def forbid_cuda(folder, calls):
    """Have Python processes with `folder` in PYTHONPATH write forbidden calls to a file."""
    hook = after_import("torch.cuda", HOOK.format(path=str(calls)))
    (folder / "sitecustomize.py").write_text(hook)


def pytest_generate_tests(metafunc):
    """Run over both backends on this machine, and in `make soak` over all launchers."""
    parametrize(metafunc)


@pytest.fixture(scope="module")
def case(request):
    """A backend and a launcher."""
    return request.param


def test_no_process_that_forks_touches_cuda(case, tmp_path):
    """Clusters start, train and replace a rank without it."""
    calls = tmp_path / "calls"
    forbid_cuda(tmp_path, calls)
    before = case.backend.environment["PYTHONPATH"]
    path = os.pathsep.join(filter(None, [str(tmp_path), before]))
    environment = {**case.backend.environment, "PYTHONPATH": path}
    guarded = dataclasses.replace(
        case, backend=dataclasses.replace(case.backend, environment=environment)
    )
    python = tmp_path / "python"  # of VMs, whose sshd has another environment
    python.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with contextlib.ExitStack() as stack:
        options = stack.enter_context(guarded.options())
        if "hosts" in options:
            hosts = [
                dataclasses.replace(h, python=str(python)) for h in parse_hosts(options["hosts"])
            ]
            options = {**options, "hosts": hosts}
        cluster = stack.enter_context(wb.Cluster(**options))
        quiet(cluster, case.backend.cells + "make(); train(2)")
        cluster.restart(1)
        quiet(cluster, case.backend.cells + "make(); train(2)")
        quiet(cluster, "torch.cuda.is_available()")  # a rank may
    assert not calls.exists(), calls.read_text()
    assert (tmp_path / "calls.guarded").exists()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_warm_process_does_not_touch_cuda(backend, tmp_path, monkeypatch):
    """It forks agents, and loads later what their ranks need."""
    calls = tmp_path / "calls"
    forbid_cuda(tmp_path, calls)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with wb.Cluster(n=1, backend=backend):
        process = warm.pid()
    time.sleep(2)  # the warm process loads what later ranks need
    with wb.Cluster(n=1, backend=backend) as cluster:
        quiet(cluster, "import torch; torch.cuda.is_available()")
    assert warm.pid() == process is not None
    assert not calls.exists(), calls.read_text()
    mapped = Path(f"/proc/{process}/maps").read_text()
    assert "libtorch" in mapped
    assert "libcuda.so" not in mapped
