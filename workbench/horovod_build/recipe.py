"""How Horovod 0.28.1 is built against a PyTorch that is three years younger.

Three kinds of things stand between the last release of Horovod and a present machine,
and each is met here without touching a line of its source (what its source does
wrong once it is compiled is the matter of `cures`):

- It asks for C++14 in two CMakeLists; PyTorch's headers refuse that. A CMake
  toolchain file makes every project include a snippet that spells "C++14" as
  the standard that PyTorch's headers ask for (horovod#3996, horovod#4014).
- Its bundled Gloo declares a CMake of 2013, which CMake 4 refuses, and relies
  on headers that included ``<cstdint>`` by themselves before GCC 13.
- Its setup asks the compiler for the *native* instruction set and lets CMake
  write the folders of the build into the library; the wheel would then depend,
  unseen, on the processor and on the environment that happened to build it.
"""

from __future__ import annotations

import sys
import sysconfig
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from workbench.horovod_build.machine import Machine
    from workbench.horovod_build.operations import Operations

VERSION = "0.28.1"
"""The last release of Horovod (June 2023)."""

SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
"""What the published source archive must hash to."""

RECIPE = 2
"""Raised whenever a change in this file makes another wheel from the same parts."""

BUILD_NEEDS = ("setuptools>=70.1,<81",)
"""What Horovod's ``setup.py`` runs on; 70.1 is the first that builds wheels by
itself, 81 the first without the ``setup.py``-time features that it uses."""

RUNTIME_NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi>=1.4.0")
"""Horovod's own requirements but for PyTorch, which must stay as it is."""

SITE_PACKAGES = "$ORIGIN/../.."
"""Where packages lie, seen from the library in ``horovod/torch/``."""

_TOOLCHAIN = """\
set(CMAKE_PROJECT_INCLUDE "{snippet}")
# As CMake's RelWithDebInfo without the debug information: a third of the size.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG" CACHE STRING "" FORCE)
# Libraries are looked for beside the wheel wherever it is installed, and never
# in the folder of the build, which is gone and may be anyone's by then.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "{rpath}")
"""

_SNIPPET = """\
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION -std=c++{standard})
set(CMAKE_CXX14_EXTENSION_COMPILE_OPTION -std=gnu++{standard})
set(CMAKE_CUDA11_STANDARD_COMPILE_OPTION -std=c++{standard})
set(CMAKE_CUDA11_EXTENSION_COMPILE_OPTION -std=c++{standard})
"""


def write_toolchain(folder: Path, cxx_standard: int, libraries: Sequence[str] = ()) -> Path:
    """Write the two CMake files and return the one that CMake is told of.

    Parameters
    ----------
    folder
        An existing folder for both.
    cxx_standard
        The standard that PyTorch's headers ask for, such as 17.
    libraries
        Folders, beyond PyTorch's and the system's, that hold shared libraries.
    """
    snippet = folder / "standard.cmake"
    snippet.write_text(_SNIPPET.format(standard=cxx_standard), encoding="utf-8")
    toolchain = folder / "toolchain.cmake"
    rpath = ";".join((f"{SITE_PACKAGES}/torch/lib", *libraries))
    toolchain.write_text(_TOOLCHAIN.format(snippet=snippet, rpath=rpath), encoding="utf-8")
    return toolchain


def environment(
    base: Mapping[str, str],
    *,
    tools: Path,
    toolchain: Path,
    machine: Machine,
    operations: Operations,
    jobs: int,
) -> dict[str, str]:
    """Return the environment in which Horovod's ``setup.py`` builds.

    Settings of Horovod's own build that the caller's shell happens to carry are
    left out: the options of this command decide alone.
    """
    env = {name: value for name, value in base.items() if not name.startswith("HOROVOD_")}
    env |= {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "CMAKE_TOOLCHAIN_FILE": str(toolchain),
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "CXX": machine.compiler,
        "CXXFLAGS": f"{base.get('CXXFLAGS', '')} -include cstdint".strip(),
        # Horovod asks `distutils` for this folder, which Python 3.12 dropped.
        "CPLUS_INCLUDE_PATH": _joined(sysconfig.get_path("include"), base, "CPLUS_INCLUDE_PATH"),
        "MAKEFLAGS": f"-j{jobs}",
        "PYTHONUNBUFFERED": "1",
    }
    env |= tool_environment(base, tools)
    if machine.arch_flags:
        env["HOROVOD_BUILD_ARCH_FLAGS"] = " ".join(machine.arch_flags)
    return env | operations.environment()


def tool_environment(base: Mapping[str, str], tools: Path) -> dict[str, str]:
    """Return what puts the build tools in `tools` in front of the environment's own."""
    return {
        "PYTHONPATH": _joined(str(tools), base, "PYTHONPATH"),
        "PATH": _joined(str(tools / "bin"), base, "PATH"),
        "LC_ALL": "C",  # `causes` reads English
    }


def setup_command(wheels: Path) -> list[str]:
    """Return the command, run inside the sources, that leaves a wheel in `wheels`."""
    return [sys.executable, "setup.py", "bdist_wheel", "--dist-dir", str(wheels)]


def _joined(first: str, base: Mapping[str, str], name: str) -> str:
    """`first` in front of the path list that `base` has under `name`."""
    return ":".join(part for part in (first, base.get(name)) if part)
