"""Choose which of Horovod's operations to build on this machine."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import UsageError
from workbench.horovod_build.failures import failed
from workbench.horovod_build.machine import TorchInfo, first_line, installed_tensorflow

_log = logging.getLogger(__name__)

SITE_PACKAGES = "$ORIGIN/../.."
"""The ``site-packages`` folder, relative to the library in ``horovod/torch/``."""

NAMES = ("gloo", "nccl", "mpi", "tensorflow")
_SYSTEM = (Path("/usr"), Path("/usr/local"))
_NCCL_ROOTS = (*_SYSTEM, Path("/usr/local/nccl"), Path("/usr/local/cuda"), Path("/opt/nccl"))


@dataclass(frozen=True)
class OperationSupport:
    """Result of the search for one operation on this machine.

    Attributes
    ----------
    version
        Such as ``"NCCL 2.27.3"``; None if the machine does not support the operation.
    reason
        Where it was found, or why it cannot be built and what to install.
    include, library, toolkit
        NCCL's header folder and library file, and the CUDA toolkit's folder.
    load_folder
        Folder of its library for the dynamic loader, if that is not a default folder.
    """

    version: str | None
    reason: str
    include: Path | None = None
    library: Path | None = None
    toolkit: Path | None = None
    load_folder: str | None = None


@dataclass(frozen=True)
class BuildOperations:
    """The operations that a build will have.

    Attributes
    ----------
    chosen
        The support of this machine for each chosen operation, by name.
    without_nccl
        Why a CUDA PyTorch gets no NCCL; empty if it gets NCCL, or the user left NCCL out.
    """

    chosen: dict[str, OperationSupport]
    without_nccl: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The chosen operations, in a fixed order."""
        return tuple(name for name in NAMES if name in self.chosen)

    def load_folders(self) -> list[str]:
        """Return the folders where the dynamic loader finds the library's dependencies."""
        folders = (self.chosen[name].load_folder for name in self.names)
        return [folder for folder in folders if folder is not None]

    def versions(self) -> dict[str, str]:
        """Return each chosen operation with its version."""
        return {name: self.chosen[name].version or "" for name in self.names}

    def environment(self) -> dict[str, str]:
        """Return the environment variables that select them in Horovod's CMake files."""
        env = {"HOROVOD_WITH_GLOO": "1", "HOROVOD_CPU_OPERATIONS": "GLOO"}
        for name in ("mpi", "tensorflow"):
            env[f"HOROVOD_WITH{'' if name in self.chosen else 'OUT'}_{name.upper()}"] = "1"
        if nccl := self.chosen.get("nccl"):
            env |= {
                "HOROVOD_GPU": "CUDA",
                "HOROVOD_GPU_OPERATIONS": "NCCL",
                "HOROVOD_NCCL_LINK": "SHARED",
                "HOROVOD_NCCL_INCLUDE": str(nccl.include),
                "HOROVOD_CUDA_HOME": str(nccl.toolkit),
                "CUDA_HOME": str(nccl.toolkit),
            }
        return env


def choose(
    torch: TorchInfo, wanted: Collection[str] = (), unwanted: Collection[str] = ()
) -> BuildOperations:
    """Choose the operations to build: all that the machine supports, without the unwanted ones.

    Operations for TensorFlow are built only if they are wanted, since they take minutes more.

    Raises
    ------
    UsageError
        If the two arguments contradict each other, or Gloo is unwanted.
    BuildFailed
        If a wanted operation cannot be built on this machine.
    """
    _check_choice(wanted, unwanted)
    support = {"gloo": OperationSupport("bundled", "Horovod includes it"), "mpi": find_mpi()}
    support["nccl"] = find_nccl(torch)
    if "tensorflow" in wanted:
        support["tensorflow"] = find_tensorflow(torch)
    for name in wanted:
        if support[name].version is None:
            raise failed(
                f"--with {name}: {support[name].reason}.",
                f"Install what is missing, or omit `--with {name}` to build without it.",
            )
    chosen = {
        name: each
        for name, each in support.items()
        if each.version is not None and name not in unwanted
    }
    nccl = support["nccl"]
    without_nccl = ""
    if torch.cuda is not None and nccl.version is None:
        without_nccl = (
            f"PyTorch has CUDA {torch.cuda}, but this build will not use NCCL: {nccl.reason}."
        )
    for name, each in support.items():
        _log.debug("Operation %s: %s, %s", name, each.version, each.reason)
    return BuildOperations(chosen, without_nccl)


def find_mpi() -> OperationSupport:
    """Search for an MPI with a C++ compiler wrapper."""
    compiler = shutil.which("mpicxx") or shutil.which("mpic++")
    if compiler is None:
        return OperationSupport(
            None, "no mpicxx is on the PATH (Debian and Ubuntu: libopenmpi-dev)"
        )
    version = first_line([compiler, "--showme:version"]) or first_line(["mpichversion"])
    # Debian's openmpi-bin has the compiler wrapper without the headers.
    folders = [Path(name) for name in (first_line([compiler, "--showme:incdirs"]) or "").split()]
    if any(folder.is_absolute() for folder in folders) and not any(
        (folder / "mpi.h").exists() for folder in folders
    ):
        return OperationSupport(
            None, f"{compiler} has no mpi.h (Debian and Ubuntu: libopenmpi-dev)"
        )
    prefix = Path(compiler).resolve().parent.parent
    load_folder = None if prefix in _SYSTEM else f"{prefix}/lib"
    return OperationSupport(version or "version unknown", compiler, load_folder=load_folder)


def find_tensorflow(torch: TorchInfo) -> OperationSupport:
    """Search for a TensorFlow with a C++ library that can be linked with PyTorch's."""
    info = installed_tensorflow()
    if info is None:
        return OperationSupport(
            None, "`import tensorflow` fails (`pip install tensorflow` installs it)"
        )
    if torch.cxx11_abi != info["cxx11_abi"]:
        return OperationSupport(
            None, f"PyTorch {torch.version} and TensorFlow use different C++ ABIs"
        )
    return OperationSupport(info["version"], info["folder"], load_folder="$ORIGIN/../torch")


def find_nccl(torch: TorchInfo) -> OperationSupport:
    """Search for NCCL's header and library, and for a CUDA toolkit.

    PyTorch's CUDA wheels include NCCL with its headers. That copy is preferred, since
    PyTorch loads it too: a rank then has a single NCCL.
    """
    if torch.cuda is None:
        return OperationSupport(None, f"PyTorch {torch.version} is built without CUDA")
    toolkit = _cuda_toolkit(torch)
    if toolkit is None:
        return OperationSupport(
            None,
            "the CUDA toolkit is missing: no folder with bin/nvcc and include/cuda_runtime.h was "
            f"found (install CUDA {torch.cuda}, or set CUDA_HOME to its folder)",
        )
    bundled = torch.folder.parent / "nvidia/nccl"
    for root in (bundled, *_NCCL_ROOTS):
        header = root / "include/nccl.h"
        library = _nccl_library(root)
        if header.exists() and library is not None:
            version = f"{_nccl_version(header)}, {_nvcc_version(toolkit)}"
            load_folder = None if root in _SYSTEM else str(library.parent)
            if root == bundled:
                load_folder = f"{SITE_PACKAGES}/nvidia/nccl/lib"
            return OperationSupport(
                version, str(root), header.parent, library, toolkit, load_folder
            )
    return OperationSupport(
        None, "NCCL's header nccl.h was not found (Debian and Ubuntu: libnccl-dev)"
    )


def _check_choice(wanted: Collection[str], unwanted: Collection[str]) -> None:
    for name in (*wanted, *unwanted):
        if name not in NAMES:
            raise UsageError(f"{name!r}: no such operation. Use one of {', '.join(NAMES)}.")
    both = sorted(set(wanted) & set(unwanted))
    if both:
        raise UsageError(
            f"--with {both[0]} --without {both[0]}: these exclude each other. Remove one of them."
        )
    if "gloo" in unwanted:
        raise UsageError(
            "--without gloo: ranks find each other over Gloo, so it is always built. Use "
            "--without mpi or --without nccl."
        )


def _nccl_library(root: Path) -> Path | None:
    """Return the shared library below `root`. In PyTorch's wheels its name has a version."""
    return next(
        (
            path
            for lib in ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
            for name in ("libnccl.so", "libnccl.so.2")
            if (path := root / lib / name).exists()
        ),
        None,
    )


def _cuda_toolkit(torch: TorchInfo) -> Path | None:
    """Return the toolkit's folder. PyTorch's own guess may only have an nvcc on the PATH."""
    named = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), torch.cuda_home]
    usual = [f"/usr/local/cuda-{torch.cuda}", "/usr/local/cuda", "/usr"]
    for folder in (Path(name) for name in (*named, *usual) if name):
        if (folder / "bin/nvcc").exists() and (folder / "include/cuda_runtime.h").exists():
            return folder
    return None


def _nvcc_version(toolkit: Path) -> str:
    nvcc = [str(toolkit / "bin/nvcc"), "--version"]
    output = subprocess.run(
        nvcc, capture_output=True, text=True, errors="replace", check=False, timeout=30
    ).stdout
    release = re.search(r"release ([\d.]+)", output)
    return f"nvcc {release[1]}" if release else "nvcc of unknown version"


def _nccl_version(header: Path) -> str:
    text = header.read_text(encoding="utf-8", errors="replace")
    parts = [
        match[1] if (match := re.search(rf"#define NCCL_{level}\s+(\d+)", text)) else "?"
        for level in ("MAJOR", "MINOR", "PATCH")
    ]
    return f"NCCL {'.'.join(parts)}"
