"""Errors of a failed build, and finding its cause in the log.

A rule is a pattern of the tool that failed (pip, CMake, make, GCC, nvcc). The first rule that
matches is used. Therefore the rule for a failure comes before the rules for failures that follow
from it.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import BuildFailed


def failed(
    cause: str, fix: str, *, log: Path | None = None, lines: Sequence[str] = ()
) -> BuildFailed:
    """Create a `BuildFailed` with its cause, what to do, and the lines of the log that show it."""
    parts = [f"Horovod was not built: {cause}", f"What to do: {fix}"]
    if lines:
        parts += ["From the log:", *(f"    {line}" for line in lines)]
    if log is not None:
        parts.append(f"Complete log: {log}")
    return BuildFailed("\n".join(parts), cause=cause, fix=fix)


def install_hint(debian: str, fedora: str) -> str:
    """Return how to install a system package with apt-get and with dnf."""
    return (
        f"Install it: `apt-get install {debian}` on Debian and Ubuntu, "
        f"`dnf install {fedora}` on Fedora and RHEL (as root)."
    )


_MAX_LINES = 8
_ERROR_LINE = re.compile(
    r"error[: ]|fatal|killed|no space|not found|cannot |no matching|undefined|CMake Error",
    re.IGNORECASE,
)
_NOISE = re.compile(r"^\s*$|error: subprocess-exited|^Traceback|^\s+File |warning:", re.IGNORECASE)


@dataclass(frozen=True)
class Diagnosis:
    """The reason why a build failed.

    Attributes
    ----------
    cause, fix
        What went wrong, and what to do: a sentence each.
    lines
        The lines of the log that show the cause, oldest first.
    """

    cause: str
    fix: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class _Rule:
    pattern: str
    cause: str
    fix: str


_PYTHON = f"python{sysconfig.get_python_version()}"
_RULES = (
    _Rule(
        r"No module named pip",
        "this environment has no pip.",
        f"Add it: `{sys.executable} -m ensurepip`, or `uv pip install pip`.",
    ),
    _Rule(
        r"externally-managed-environment",
        "this Python is managed by the system, which does not allow pip to install into it.",
        "Create an environment (`python3 -m venv .venv`) and run this command from it.",
    ),
    _Rule(
        r"\[Errno 13\] Permission denied|\[Errno 30\] Read-only file system",
        "a file could not be written.",
        "Use an environment and a cache (XDG_CACHE_HOME) that you may write to.",
    ),
    _Rule(
        r"No space left on device|Disk quota exceeded",
        "the disk is full.",
        "Free about 1 GB, or set TMPDIR to a folder on another disk.",
    ),
    _Rule(
        r"Killed signal terminated program|virtual memory exhausted|out of memory allocating|"
        r"cc1plus.*Killed|\*\*\* \[.*\] Killed",
        "the compiler was killed: not enough memory.",
        "Build with fewer parallel compilers: `workbench build-horovod --jobs 1` needs about "
        "1.5 GB.",
    ),
    _Rule(
        r"Temporary failure in name resolution|Name or service not known|NewConnectionError|"
        r"Network is unreachable|ProxyError|ConnectTimeoutError|Max retries exceeded",
        "Horovod's source or a build tool could not be downloaded: no network or no package index.",
        "Connect this machine to a network, or set PIP_INDEX_URL or PIP_FIND_LINKS to a source of "
        "horovod-0.28.1.tar.gz, setuptools and cmake.",
    ),
    _Rule(
        r"DO NOT MATCH THE HASHES",
        "the downloaded source archive is not the one that Horovod published.",
        "Check which horovod-0.28.1.tar.gz PIP_INDEX_URL and PIP_FIND_LINKS provide.",
    ),
    _Rule(
        r"No matching distribution found for|Could not find a version that satisfies",
        "the package index does not have a package that the build needs.",
        "Set PIP_INDEX_URL or PIP_FIND_LINKS to an index that has it (the line below names it).",
    ),
    _Rule(
        r"C\+\+\d\d or later compatible compiler is required|"
        r"unrecognized (?:command[- ]line )?option .*-std=|invalid value .* in '-std=",
        "the compiler is too old for the C++ standard that this PyTorch needs.",
        "Install GCC 9 or newer and select it: `CXX=g++-12 workbench build-horovod`.",
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
        "Set CUDA_HOME to a complete toolkit, or build without NCCL: "
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
        "the CUDA toolkit's nvcc does not support this compiler or GPU.",
        "Select a compiler that this nvcc supports (`CXX=g++-12 ...`), or use `--without nccl`.",
    ),
)


def diagnose_log(text: str) -> Diagnosis:
    r"""Find the cause of a failed build in the text of its complete log.

    Examples
    --------
    >>> diagnosis = diagnose_log("gcc ...\ncc1plus: error: No space left on device\n")
    >>> diagnosis.cause
    'the disk is full.'
    """
    lines = text.splitlines()
    for rule in _RULES:
        pattern = re.compile(rule.pattern)
        hits = [number for number, line in enumerate(lines) if pattern.search(line)]
        if hits:
            return Diagnosis(rule.cause, rule.fix, _around(lines, hits[0]))
    return Diagnosis(
        "the compilation failed for an unrecognized reason.",
        "Read the lines below and the complete log; the first error in it is the relevant one.",
        _error_lines(lines),
    )


def failure_from_log(log: Path) -> BuildFailed:
    """Create the error for a failed command from its log."""
    diagnosis = diagnose_log(log.read_text(encoding="utf-8", errors="replace"))
    return failed(diagnosis.cause, diagnosis.fix, log=log, lines=diagnosis.lines)


def _error_lines(lines: list[str]) -> tuple[str, ...]:
    """Return the lines that report errors, or the last lines if no line reports an error."""
    hits = [line for line in lines if _ERROR_LINE.search(line) and not _NOISE.search(line)]
    if hits and hits[0].startswith("CMake Error"):  # the lines below it say what is wrong
        first = lines.index(hits[0])
        hits = lines[first : first + _MAX_LINES]
    shown = [line.strip()[:200] for line in hits or lines if line.strip()]
    return tuple(shown[:_MAX_LINES] if hits else shown[-_MAX_LINES:])


def _around(lines: list[str], hit: int) -> tuple[str, ...]:
    """Return the line that matched and the lines around it."""
    near = [line.strip()[:200] for line in lines[max(0, hit - 2) : hit + 2] if line.strip()]
    return tuple(near[:_MAX_LINES])
