"""From four hundred lines of compiler output to one cause and its cure.

A rule is a pattern in the words of the tool that failed (pip, CMake, make, GCC,
nvcc); the first rule that matches speaks, so those come first whose failure
drags others behind it.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.horovod_build.failure import failed, install_hint

if TYPE_CHECKING:
    from pathlib import Path

    from workbench.errors import BuildFailed

_SHOWN_LINES = 8
_TELLING = re.compile(
    r"error[: ]|fatal|killed|no space|not found|cannot |no matching|undefined|CMake Error",
    re.IGNORECASE,
)
_NOISE = re.compile(r"^\s*$|error: subprocess-exited|^Traceback|^\s+File |warning:", re.IGNORECASE)


@dataclass(frozen=True)
class Diagnosis:
    """What stopped a build.

    Attributes
    ----------
    cause, cure
        A sentence each.
    lines
        The log's few lines that show it, oldest first.
    """

    cause: str
    cure: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class _Rule:
    pattern: str
    cause: str
    cure: str


_PYTHON = f"python{sysconfig.get_python_version()}"
_RULES = (
    _Rule(
        r"No module named pip",
        "this environment has no pip.",
        f"Add it: `{sys.executable} -m ensurepip`, or `uv pip install pip`.",
    ),
    _Rule(
        r"externally-managed-environment",
        "this Python belongs to the system, which lets pip install nothing into it.",
        "Make an environment (`python3 -m venv .venv`) and run this from there.",
    ),
    _Rule(
        r"\[Errno 13\] Permission denied|\[Errno 30\] Read-only file system",
        "a file could not be written.",
        "Use an environment and a cache (XDG_CACHE_HOME) that you may write to.",
    ),
    _Rule(
        r"No space left on device|Disk quota exceeded",
        "the disk ran full.",
        "Free about 1 GB, or set TMPDIR to a folder on another disk.",
    ),
    _Rule(
        r"Killed signal terminated program|virtual memory exhausted|out of memory allocating|"
        r"cc1plus.*Killed|\*\*\* \[.*\] Killed",
        "the compiler was killed: too little memory.",
        "Build with fewer compilers at once: `workbench build-horovod --jobs 1` needs about "
        "1.5 GB.",
    ),
    _Rule(
        r"Temporary failure in name resolution|Name or service not known|NewConnectionError|"
        r"Network is unreachable|ProxyError|ConnectTimeoutError|Max retries exceeded",
        "Horovod's source or a build tool could not be downloaded: no network, or no index there.",
        "Connect this machine, or set PIP_INDEX_URL or PIP_FIND_LINKS to where "
        "horovod-0.28.1.tar.gz, setuptools and cmake can be had.",
    ),
    _Rule(
        r"DO NOT MATCH THE HASHES",
        "the source archive that was downloaded is not the one that Horovod published.",
        "Look at what PIP_INDEX_URL and PIP_FIND_LINKS serve as horovod-0.28.1.tar.gz.",
    ),
    _Rule(
        r"No matching distribution found for|Could not find a version that satisfies",
        "the package index has not got what the build needs.",
        "Set PIP_INDEX_URL or PIP_FIND_LINKS to an index that has it (the line below names it).",
    ),
    _Rule(
        r"C\+\+\d\d or later compatible compiler is required|"
        r"unrecognized (?:command[- ]line )?option .*-std=|invalid value .* in '-std=",
        "the compiler is too old for the C++ standard that this PyTorch needs.",
        "Install GCC 9 or newer and name it: `CXX=g++-12 workbench build-horovod`.",
    ),
    _Rule(
        r"Python\.h: No such file",
        "Python's headers are missing.",
        install_hint(f"{_PYTHON}-dev", f"{_PYTHON}-devel"),
    ),
    _Rule(
        r"No CMAKE_CXX_COMPILER could be found|CMAKE_CXX_COMPILER.*not (?:able|a full path)|"
        r"compiler .* is not able to compile a simple test program",
        "the C++ compiler does not work.",
        install_hint("g++", "gcc-c++"),
    ),
    _Rule(
        r"CMake was unable to find a build program|CMAKE_MAKE_PROGRAM is not set",
        "`make` is missing.",
        install_hint("make", "make"),
    ),
    _Rule(
        r"Could NOT find CUDAToolkit|Failed to find nvcc",
        "the CUDA toolkit is missing or incomplete.",
        "Set CUDA_HOME to a whole toolkit, or build without it: "
        "`workbench build-horovod --without nccl`.",
    ),
    _Rule(
        r"Could NOT find NCCL|nccl\.h: No such file",
        "NCCL was not found.",
        "Install libnccl-dev, or build without it: `workbench build-horovod --without nccl`.",
    ),
    _Rule(
        r"Could NOT find MPI|mpi\.h: No such file",
        "MPI was not found.",
        "Install libopenmpi-dev, or build without it: `workbench build-horovod --without mpi`.",
    ),
    _Rule(
        r"unsupported GNU version|nvcc fatal|Unsupported gpu architecture",
        "the CUDA toolkit's nvcc refuses this compiler or GPU.",
        "Name a compiler that this nvcc takes (`CXX=g++-12 ...`), or `--without nccl`.",
    ),
)


def diagnose_log(text: str) -> Diagnosis:
    """Find what stopped the build whose log this is.

    Parameters
    ----------
    text
        The whole log, standard output and error in one.
    """
    lines = text.splitlines()
    for rule in _RULES:
        pattern = re.compile(rule.pattern)
        hits = [number for number, line in enumerate(lines) if pattern.search(line)]
        if hits:
            return Diagnosis(rule.cause, rule.cure, _around(lines, hits[0]))
    return Diagnosis(
        "the compile stopped for a reason that is not known here.",
        "Read the lines below and the whole log; the first error in it is the one that counts.",
        _telling(lines),
    )


def diagnosed(log: Path) -> BuildFailed:
    """Make the error for a command whose output is in `log`."""
    found = diagnose_log(log.read_text(encoding="utf-8", errors="replace"))
    return failed(found.cause, found.cure, log=log, lines=found.lines)


def _telling(lines: list[str]) -> tuple[str, ...]:
    """Return the lines that look like errors, or the last ones where none does."""
    hits = [line for line in lines if _TELLING.search(line) and not _NOISE.search(line)]
    if hits and hits[0].startswith("CMake Error"):  # which says what is wrong below it
        first = lines.index(hits[0])
        hits = lines[first : first + _SHOWN_LINES]
    written = [line.strip()[:200] for line in hits or lines if line.strip()]
    return tuple(written[:_SHOWN_LINES] if hits else written[-_SHOWN_LINES:])


def _around(lines: list[str], hit: int) -> tuple[str, ...]:
    """Return the line that matched, with what led to it."""
    near = [line.strip()[:200] for line in lines[max(0, hit - 2) : hit + 2] if line.strip()]
    return tuple(near[:_SHOWN_LINES])
