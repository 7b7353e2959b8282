"""Properties of the installed PyTorch that a build needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from workbench.horovod_build.failure import failed

_PROBE = """
import json, torch
from torch.utils import cpp_extension
print("TORCH " + json.dumps({
    "version": str(torch.__version__),
    "cuda": torch.version.cuda,
    "cxx11_abi": bool(torch.compiled_with_cxx11_abi()),
    "folder": str(torch.__path__[0]),
    "cuda_home": cpp_extension.CUDA_HOME,
}))
"""


@dataclass(frozen=True)
class TorchInfo:
    """The installed PyTorch.

    Attributes
    ----------
    version
        Including the local part, such as ``"2.13.0+cpu"``.
    cuda
        CUDA version that it was built with, such as ``"12.6"``; None for a CPU build.
    cxx11_abi
        Whether it uses the new C++11 ABI of libstdc++.
    folder
        The package's folder.
    cuda_home
        Folder of the CUDA toolkit that PyTorch finds; None if it finds none.
    """

    version: str
    cuda: str | None
    cxx11_abi: bool
    folder: Path
    cuda_home: str | None

    @property
    def cxx_standard(self) -> int:
        """The C++ standard that its headers require, read from their ``#error``."""
        header = self.folder / "include/torch/csrc/api/include/torch/all.h"
        try:
            text = header.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return 17
        required = re.search(r"C\+\+(\d\d) or later", text)
        return int(required[1]) if required else 17


def installed_torch() -> TorchInfo:
    """Return the properties of the installed PyTorch, from a new interpreter.

    This process may have imported another PyTorch before it was replaced.

    Raises
    ------
    BuildFailed
        If PyTorch is missing or does not import.
    """
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False, timeout=300
    )
    for line in probe.stdout.splitlines():
        if line.startswith("TORCH "):
            facts = json.loads(line.removeprefix("TORCH "))
            return TorchInfo(**facts | {"folder": Path(facts["folder"])})
    raise _no_torch(probe.stderr)


def _no_torch(stderr: str) -> Exception:
    last = (stderr.strip().splitlines() or ["no output"])[-1]
    if "No module named 'torch'" in last:
        return failed(
            f"this environment has no PyTorch ({sys.executable}).",
            f"Install it first: `{sys.executable} -m pip install torch`, then run this again.",
        )
    return failed(
        f"the installed PyTorch does not import: {last}",
        "Make `import torch` work first, then run this again.",
    )
