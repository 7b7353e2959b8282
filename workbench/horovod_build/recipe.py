"""Build settings that compile Horovod 0.28.1 against a PyTorch that is three years newer.

Three kinds of problems keep the last release of Horovod from compiling on a current
machine. Each is solved here without changing its source (`patches` fixes what its
source does wrong at run time):

- It requests C++14 in two CMakeLists, which PyTorch's headers reject. A CMake
  toolchain file makes every project include a snippet that maps "C++14" to the
  standard that PyTorch's headers require (horovod#3996, horovod#4014).
- Its bundled Gloo declares a minimum CMake version of 2013, which CMake 4 rejects, and omits
  ``<cstdint>``, which other headers included before GCC 13.
- Its setup compiles for the *native* instruction set and lets CMake write the build
  folders into the library. The wheel would silently depend on the CPU and the
  environment of its build.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from workbench.horovod_build.machine import Machine
from workbench.horovod_build.operations import SITE_PACKAGES, BuildOperations

VERSION = "0.28.1"
"""The last release of Horovod (June 2023)."""

SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
"""SHA-256 of the published source archive."""

RECIPE = 2
"""Version of this recipe; increment it when a change in this file changes the wheel."""

BUILD_REQUIREMENTS = ("setuptools>=70.1,<81",)
"""Requirements of Horovod's ``setup.py``. setuptools 70.1 is the first version that builds wheels
without another package; 81 is the first without the features that ``setup.py`` uses."""

RUNTIME_REQUIREMENTS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi>=1.4.0")
"""Horovod's requirements except PyTorch, which pip must not replace."""

_TOOLCHAIN = """\
set(CMAKE_PROJECT_INCLUDE "{snippet}")
# CMake's RelWithDebInfo without the debug information: a third of the size.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG" CACHE STRING "" FORCE)
# Search for libraries relative to the installed wheel, and never in the build folder,
# which is deleted after the build and could be created by another user.
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
    """Write the two CMake files, and return the path of the toolchain file.

    `libraries` are folders with shared libraries that belong neither to PyTorch nor to the system.
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
    operations: BuildOperations,
    jobs: int,
) -> dict[str, str]:
    """Return the environment variables for Horovod's ``setup.py``.

    Build settings of Horovod in the caller's environment are removed: only the options of
    this command are used.
    """
    env = {name: value for name, value in base.items() if not name.startswith("HOROVOD_")}
    env |= {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "CMAKE_TOOLCHAIN_FILE": str(toolchain),
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "CXX": machine.compiler,
        "CXXFLAGS": f"{base.get('CXXFLAGS', '')} -include cstdint".strip(),
        # Horovod gets this folder from `distutils`, which Python 3.12 removed.
        "CPLUS_INCLUDE_PATH": _joined(sysconfig.get_path("include"), base, "CPLUS_INCLUDE_PATH"),
        "MAKEFLAGS": f"-j{jobs}",
        "PYTHONUNBUFFERED": "1",
    }
    env |= tool_environment(base, tools)
    if machine.arch_flags:
        env["HOROVOD_BUILD_ARCH_FLAGS"] = " ".join(machine.arch_flags)
    return env | operations.environment()


def tool_environment(base: Mapping[str, str], tools: Path) -> dict[str, str]:
    """Return variables that make the build tools in `tools` take precedence."""
    return {
        "PYTHONPATH": _joined(str(tools), base, "PYTHONPATH"),
        "PATH": _joined(str(tools / "bin"), base, "PATH"),
        "LC_ALL": "C",  # the rules in `failures` match English messages
    }


def setup_command(wheels: Path) -> list[str]:
    """Return the command that writes a wheel to `wheels` if it is run in the source folder."""
    return [sys.executable, "setup.py", "bdist_wheel", "--dist-dir", str(wheels)]


def _joined(first: str, base: Mapping[str, str], name: str) -> str:
    """Prepend `first` to the path list of the variable `name` in `base`.

    Examples
    --------
    >>> _joined("/tools/bin", {"PATH": "/usr/bin"}, "PATH")
    '/tools/bin:/usr/bin'
    """
    return ":".join(filter(None, (first, base.get(name))))
