"""The build machine and its PyTorch: compiler, headers, cores, memory, disk."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.horovod_build.failures import failed, install_hint

JOB_BYTES = 1_500_000_000
"""Memory to plan for each compiler process: the largest source file
(``torch/mpi_ops_v2.cc``, with all of PyTorch's headers) needs about 1.2 GB."""

DISK_BYTES = 1_000_000_000
"""Disk space that a build needs for sources, objects and the wheel."""

_ARCH_FLAGS = {"f16c": "-mf16c", "avx": "-mavx", "fma": "-mfma"}
_PROCESSOR_FILE = Path("/proc/cpuinfo")
_MEMORY_FILE = Path("/proc/meminfo")
_CGROUP_MEMORY = Path("/sys/fs/cgroup")
_TORCH_PROBE = """
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

_TENSORFLOW_PROBE = """
import json, tensorflow
print("TENSORFLOW " + json.dumps({
    "version": tensorflow.__version__,
    "cxx11_abi": "-D_GLIBCXX_USE_CXX11_ABI=1" in tensorflow.sysconfig.get_compile_flags(),
    "folder": tensorflow.__path__[0],
}))
"""


@dataclass(frozen=True)
class Machine:
    """Properties of this machine that determine the wheel.

    Attributes
    ----------
    compiler
        Path of the C++ compiler.
    compiler_version
        The first line that the compiler prints for ``--version``.
    arch_flags
        Compiler options for those instruction sets that Horovod uses and this CPU has.
    platform
        Such as ``"Linux-x86_64"``.
    libc
        Such as ``"glibc-2.36"``.
    """

    compiler: str
    compiler_version: str
    arch_flags: tuple[str, ...]
    platform: str
    libc: str


def this_machine() -> Machine:
    """Return the properties of this machine."""
    compiler = find_compiler()
    return Machine(
        compiler=compiler,
        compiler_version=first_line([compiler, "--version"]) or "version unknown",
        arch_flags=_arch_flags(),
        platform=f"{platform.system()}-{platform.machine()}",
        libc="-".join(platform.libc_ver()),
    )


def find_compiler() -> str:
    """Return the path of the C++ compiler: ``$CXX``, or else the first usual one on the PATH."""
    wanted = os.environ.get("CXX")
    names = (wanted,) if wanted else ("c++", "g++", "clang++")
    compiler = next((path for name in names if (path := shutil.which(name))), None)
    if compiler:
        return compiler
    fix = install_hint("g++ make", "gcc-c++ make")
    if wanted:
        raise failed(f"no C++ compiler: $CXX is {wanted!r}, which is not on the PATH.", fix)
    raise failed("no C++ compiler: none of c++, g++, clang++ is on the PATH.", fix)


def require_build_tools(build_folder: Path) -> None:
    """Raise a `BuildFailed` if a tool, Python's headers or disk space is missing.

    Otherwise the compilation would fail only after minutes.
    """
    if shutil.which("make") is None:
        raise failed("`make` is not on the PATH.", install_hint("make", "make"))
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        name = f"python{sysconfig.get_python_version()}"
        raise failed(
            f"Python's headers are missing: there is no {header}.",
            install_hint(f"{name}-dev", f"{name}-devel"),
        )
    free = shutil.disk_usage(build_folder).free
    if free < DISK_BYTES:
        raise failed(
            f"not enough disk space: {free / 1e9:.1f} GB are free in {build_folder}, "
            f"a build needs {DISK_BYTES / 1e9:.1f} GB.",
            "Free some space, or set TMPDIR to a folder on another disk.",
        )


def jobs(memory_bytes: int | None = None, cores: int | None = None) -> int:
    """Return the number of parallel compilers that cores and available memory permit.

    Examples
    --------
    >>> jobs(memory_bytes=4 * JOB_BYTES, cores=16)
    4
    """
    cores = cores or len(os.sched_getaffinity(0))
    free = available_memory_bytes() if memory_bytes is None else memory_bytes
    return max(1, cores if free is None else min(cores, free // JOB_BYTES))


def available_memory_bytes() -> int | None:
    """Return the available memory, within the container's limit; None if unknown."""
    bounds = [value for value in (_meminfo_available(), _cgroup_left()) if value is not None]
    return min(bounds, default=None)


def first_line(command: list[str]) -> str | None:
    """Return the first line that a command prints, or None if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return next((line.strip() for line in done.stdout.splitlines() if line.strip()), None)


def _arch_flags() -> tuple[str, ...]:
    try:
        text = _PROCESSOR_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    flags = re.search(r"^flags\s*:\s*(.*)$", text, re.MULTILINE)
    cpu_flags = set(flags[1].split()) if flags else set()
    return tuple(option for name, option in _ARCH_FLAGS.items() if name in cpu_flags)


def _meminfo_available() -> int | None:
    # psutil is not used: a build runs before the package's dependencies are installed.
    try:
        text = _MEMORY_FILE.read_text(encoding="ascii")
    except OSError:
        return None
    match = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _cgroup_left() -> int | None:
    try:
        limit = (_CGROUP_MEMORY / "memory.max").read_text(encoding="ascii").strip()
        used = int((_CGROUP_MEMORY / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)


@dataclass(frozen=True)
class TorchInfo:
    """The installed PyTorch.

    Attributes
    ----------
    version
        Including the local version, such as ``"2.13.0+cpu"``.
    cuda
        CUDA version that it was built with, such as ``"12.6"``; None for a CPU build.
    cxx11_abi
        Whether it uses the new C++11 ABI of libstdc++.
    folder
        The package's folder.
    cuda_home
        Folder of the CUDA toolkit that PyTorch finds; None if it does not find a toolkit.
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
    """
    probe = run_probe(_TORCH_PROBE)
    facts = json_after(probe.stdout, "TORCH ")
    if facts is None:
        raise _no_torch(probe.stderr)
    return TorchInfo(**facts | {"folder": Path(facts["folder"])})


def installed_tensorflow() -> dict[str, Any] | None:
    """Return version, folder and C++ ABI of the installed TensorFlow; None without TensorFlow."""
    facts: dict[str, Any] | None = json_after(run_probe(_TENSORFLOW_PROBE).stdout, "TENSORFLOW ")
    return facts


def run_probe(source: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new interpreter, and return its result. The code may fail."""
    return subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=300,
    )


def json_after(output: str, mark: str) -> Any:
    r"""Return the JSON behind `mark` in a program's output; None if no line begins with it.

    Examples
    --------
    >>> json_after('a warning\nTORCH {"cuda": null}\n', "TORCH ")
    {'cuda': None}
    """
    for line in output.splitlines():
        if line.startswith(mark):
            return json.loads(line.removeprefix(mark))
    return None


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
