"""What tests leave behind in a rank: it is cleared, or reported so that the rank is replaced.

`clean_ranks` runs this file in a rank, where no folder of the tests can be imported.
"""

import asyncio
import gc
import inspect
import logging
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import psutil
import torch
import torch.distributed as dist
from IPython import get_ipython
from IPython.core.async_helpers import get_asyncio_loop
from torch.nn.modules import module as torch_module

# These change with each ring that is formed.
RING_VARIABLES = {"MASTER_ADDR", "MASTER_PORT", "TF_CONFIG"}
OUR_VARIABLES = {"KINETO_LOG_LEVEL"}
"""The product sets them, for the life of the process."""
RING_PREFIXES = ("HOROVOD_GLOO_", "HOROVOD_HOSTNAME", "HOROVOD_RANK", "HOROVOD_SIZE",
                 "HOROVOD_LOCAL_", "HOROVOD_CROSS_", "HOROVOD_CONTROLLER")  # fmt: skip
MORE_BYTES = 600 << 20
"""By how much a rank's memory may grow."""
CALL = re.compile(r"_[0-9a-f]{8}_")
"""What ipyparallel calls a function and its arguments, while it runs."""
MORE_FILES = 100
"""How many more files a rank may have open."""


def state():
    """Return what code in a cell can change and a later test can notice, by its name."""
    return {
        "environment variables": _environment(),
        "working directory": str(Path.cwd()),
        "signal handlers": {number: signal.getsignal(number) for number in _signals()},
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "timer": signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        "standard descriptors": [os.fstat(number)[:3] for number in range(3)],
        "resource limits": _limits(),
        "CPU affinity": os.sched_getaffinity(0),
        "niceness": os.nice(0),
        "hooks of Python": _python_hooks(),
        "settings of Python": _python_settings(),
        "settings of torch": _torch_settings(),
        "process groups": sorted(map(str, dist.distributed_c10d._world.pg_map.values())),
        "Horovod": _horovod(),
        "IPython": _ipython(),
        "threads": _threads(),
        "child processes": _children(),
        "tasks": sorted(map(repr, asyncio.all_tasks(get_asyncio_loop()))),
        "replaced functions": _functions(),
    }


def _environment():
    return {
        name: value
        for name, value in os.environ.items()
        if name not in RING_VARIABLES | OUR_VARIABLES and not name.startswith(RING_PREFIXES)
    }


def _signals():
    return [number for number in signal.valid_signals() if number < signal.SIGRTMIN]


def _limits():
    names = [name for name in vars(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def _python_hooks():
    return {
        "excepthook": sys.excepthook,
        "unraisablehook": sys.unraisablehook,
        "threading.excepthook": threading.excepthook,
        "trace": sys.gettrace(),
        "profile": sys.getprofile(),
        "meta_path": list(sys.meta_path),
        "path": list(sys.path),
        "argv": list(sys.argv),
        "callbacks of gc": list(gc.callbacks),
    }


def _python_settings():
    root = logging.getLogger()
    return {
        "recursions": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "gc": (gc.isenabled(), gc.get_threshold()),
        "log": (root.level, list(root.handlers), root.manager.disable),
        "warnings": len(warnings.filters),
    }


def _torch_settings():
    hooks = {name: sum(not _is_ours(hook) for hook in value.values())
             for name, value in vars(torch_module).items()
             if name.startswith("_global_") and isinstance(value, dict)}  # fmt: skip
    return {
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "profiler": torch.autograd._profiler_enabled(),
        "hooks": hooks,
    }


def _horovod():
    horovod = sys.modules.get("horovod.torch")
    if horovod is None or not horovod.is_initialized():
        return None
    library = horovod.mpi_ops._basics.MPI_LIB_CTYPES
    return {
        "process sets": library.horovod_number_of_process_sets(),
        "waiting": len(horovod.mpi_ops._handle_map),
    }


def _ipython():
    shell = get_ipython()
    printers = {name: len(formatter.type_printers) + len(formatter.deferred_printers)
                for name, formatter in shell.display_formatter.formatters.items()}  # fmt: skip
    return {
        "callbacks": {name: len(calls) for name, calls in shell.events.callbacks.items()},
        "transformers": [len(shell.ast_transformers), len(shell.input_transformers_post),
                         len(shell.input_transformer_manager.cleanup_transforms)],
        "magics": {kind: len(found) for kind, found in shell.magics_manager.magics.items()},
        "tracebacks": shell.InteractiveTB.mode,
        "interactivity": shell.ast_node_interactivity,
        "printers": printers,
    }  # fmt: skip


def _threads():
    names = (thread.name for thread in threading.enumerate() if thread.is_alive())
    return sorted(name for name in names if not name.startswith("workbench-"))


def _children():
    return sorted(process.pid for process in psutil.Process().children())


def _open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def _functions():
    """Return the functions that tests replace, without our own replacements."""
    owners = [torch, torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.autograd, dist,
              dist.distributed_c10d, os, time, threading, subprocess, signal, random,
              threading.Thread,  # noqa: TID251 - the class, no thread
              sys.modules["builtins"]]  # fmt: skip
    owners += [sys.modules[name] for name in ("horovod.torch", "horovod.torch.mpi_ops")
               if name in sys.modules]  # fmt: skip
    values = (
        (owner.__name__, name, inspect.getattr_static(owner, name))
        for owner in owners
        for name in dir(owner)
    )
    return {
        f"{owner}.{name}": _original(value)
        for owner, name, value in values
        if inspect.isroutine(value) or isinstance(value, type)
    }


def _original(function):
    while hasattr(function, "__wrapped__") and _is_ours(function):
        function = function.__wrapped__
    return function


def _is_ours(function):
    """Return whether the workbench has defined it, whatever it says of itself."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return "/workbench/" in getattr(code, "co_filename", "")


def clear():
    """Delete the variables of cells, and restore what is easy to restore."""
    shell = get_ipython()
    hidden = shell.user_ns_hidden
    for name, value in list(shell.user_ns.items()):
        is_hidden = name in hidden and hidden[name] is value
        if not (name in kept or is_hidden or CALL.match(name)):
            del shell.user_ns[name]
    shell.user_ns.update(kept)
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    if dist.is_initialized() and not started["process groups"]:
        dist.destroy_process_group()
    os.chdir(started["working directory"])
    random.setstate(seeds[0])
    np.random.set_state(seeds[1])
    torch.set_rng_state(seeds[2])
    gc.collect()


def differences():
    """Return what is not as it was when this rank was new."""
    now = state()
    found = [f"{name}: {_change(before, now[name])}"
             for name, before in started.items() if now[name] != before]  # fmt: skip
    more = psutil.Process().memory_info().rss - memory
    if more > MORE_BYTES:
        found.append(f"memory: {more >> 20} MB more")
    more = _open_files() - files
    if more > MORE_FILES:
        found.append(f"open files: {more} more")
    return found


def _change(before, now):
    if isinstance(before, dict) and isinstance(now, dict):
        before, now = before.items(), now.items()
        changed = [item for item in now if item not in before]
        return str(changed or [item for item in before if item not in now])[:200]
    return f"{now}, not {before}"[:200]


kept = {name: value for name, value in get_ipython().user_ns.items()
        if name.startswith("__") or name in {"In", "Out", "get_ipython"}}  # fmt: skip
seeds = random.getstate(), np.random.get_state(), torch.get_rng_state()
files = _open_files()
memory = psutil.Process().memory_info().rss
started = state()
