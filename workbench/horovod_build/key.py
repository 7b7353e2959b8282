"""The facts that identify a wheel, and its key in the cache."""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from typing import TYPE_CHECKING, Any

from workbench.horovod_build import patches
from workbench.horovod_build.recipe import RECIPE, VERSION

if TYPE_CHECKING:
    from workbench.horovod_build.machine import Machine
    from workbench.horovod_build.operations import Operations
    from workbench.horovod_build.torchinfo import TorchInfo

RECORD_NAME = "gradient-workbench.json"
"""Name of the file with the facts in the wheel's ``dist-info``."""


def facts(torch: TorchInfo, machine: Machine, operations: Operations) -> dict[str, Any]:
    """Return, as JSON values, everything that determines the content of a wheel."""
    return {
        "horovod": VERSION,
        "recipe": RECIPE,
        patches.FACT: patches.digests(),
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
    """Return the folder name of a wheel: its versions, then a hash of all its facts."""
    exact = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return f"{parts['horovod']}-torch{parts['torch']}-{exact[:16]}"
