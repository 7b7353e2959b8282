"""What a wheel was built from: the key that it is kept under."""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from typing import TYPE_CHECKING, Any

from workbench.horovod_build import cures
from workbench.horovod_build.recipe import RECIPE, VERSION

if TYPE_CHECKING:
    from workbench.horovod_build.machine import Machine
    from workbench.horovod_build.operations import Operations
    from workbench.horovod_build.torchinfo import TorchInfo

RECORD_NAME = "gradient-workbench.json"
"""The file in the wheel's ``dist-info`` that holds the facts."""


def facts(torch: TorchInfo, machine: Machine, operations: Operations) -> dict[str, Any]:
    """Return, as plain JSON, everything that two equal wheels must agree in."""
    return {
        "horovod": VERSION,
        "recipe": RECIPE,
        "cures": cures.record(),
        "torch": torch.version,
        "cuda": torch.cuda,
        "cxx11_abi": torch.cxx11_abi,
        "cxx_standard": torch.cxx_standard,
        "python": f"{sys.implementation.cache_tag} {sysconfig.get_config_var('SOABI')}",
        "platform": machine.platform,
        "libc": machine.libc,
        "arch_flags": list(machine.arch_flags),
        "compiler": machine.compiler_version,
        "operations": operations.versions(),
    }


def key(parts: dict[str, Any]) -> str:
    """Return the folder name for the facts: readable in front, exact behind."""
    exact = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return f"{parts['horovod']}-torch{parts['torch']}-{exact[:16]}"
