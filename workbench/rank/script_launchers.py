"""Adapts libraries that detect how a script was started: the ranks are its processes.

Lightning and accelerate start their own processes in a notebook, or start a script again. In a
rank these processes would wait forever for each other. Therefore the start is refused, with
instructions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from workbench.rank.after_import import after_import

_LIGHTNING = tuple(
    f"{package}.strategies.launchers"
    for package in (
        "lightning.pytorch",
        "lightning.fabric",
        "pytorch_lightning",
        "lightning_fabric",
    )
)


def install(backend: str) -> None:
    """Make this process look like a process of a script, and refuse to start others.

    Parameters
    ----------
    backend
        Name of the backend that joins the ranks.
    """
    for name in ("ps1", "ps2", "ps3"):  # IPython's prompts: of an interactive console only
        vars(sys).pop(name, None)
    refuse = partial(_refuse, backend)
    for package in _LIGHTNING:
        after_import(f"{package}.multiprocessing", partial(_refuse_multiprocessing, refuse))
        after_import(f"{package}.subprocess_script", partial(_refuse_scripts, refuse))
    after_import("accelerate.launchers", partial(_refuse_notebook_launcher, backend))


def _refuse_multiprocessing(refuse: Callable[[str], NoReturn], module: ModuleType) -> None:
    def launch(launcher: Any, *_: Any, **__: Any) -> NoReturn:
        refuse(f"a Lightning strategy that starts processes ({launcher._start_method})")

    module._MultiProcessingLauncher.launch = launch


def _refuse_scripts(refuse: Callable[[str], NoReturn], module: ModuleType) -> None:
    def call_children_scripts(_launcher: Any) -> NoReturn:
        refuse("a Lightning strategy that starts the script again for each device")

    launcher = module._SubprocessScriptLauncher
    launcher._call_children_scripts = call_children_scripts


def _refuse(backend: str, attempt: str) -> NoReturn:
    if backend == "ddp":
        local, vms = (os.environ.get(f"{name}_WORLD_SIZE", "1") for name in ("LOCAL", "GROUP"))
        nodes = f", num_nodes={vms}" if vms != "1" else ""
        fix = f"Use Trainer(strategy='ddp', devices={local}{nodes})"
    else:
        fix = (
            "This cluster connects its ranks with Horovod, which Lightning cannot use. Start one "
            "with %cluster start --backend ddp, and use Trainer(strategy='ddp') there"
        )
    raise RuntimeError(
        f"{attempt}: not possible in a rank, because the ranks of the cluster are the processes of "
        f"the training. {fix}."
    )


def _refuse_notebook_launcher(backend: str, module: ModuleType) -> None:
    def notebook_launcher(function: Any, *_: Any, **__: Any) -> NoReturn:
        name = getattr(function, "__name__", "the function")
        start = "" if backend == "ddp" else ", in a cluster of %cluster start --backend ddp"
        raise RuntimeError(
            f"notebook_launcher({name}): it starts processes, but the ranks of the cluster are "
            f"the processes of the training. Call {name}() itself{start}."
        )

    module.notebook_launcher = notebook_launcher  # type: ignore[attr-defined]
