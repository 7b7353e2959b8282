"""Builds and loads the process group in C++ that notes the buckets of DDP models.

It is compiled once for each version of PyTorch, and kept in the user's cache. Without it,
`forwarding_group` does the same in Python.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import logging
import os
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch

from workbench.errors import WorkbenchError
from workbench.safefiles import xdg_folder

_NAME = "workbench_native_group"
_SOURCE = Path(__file__).with_name("native_group.cc")
_logger = logging.getLogger(__name__)


def library() -> Path:
    """Return the path of the compiled group for this PyTorch; the file may not exist.

    Raises
    ------
    RuntimeError
        The user has no home, and XDG_CACHE_HOME is not set.
    """
    python = sysconfig.get_config_var("SOABI")
    source = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    folder = xdg_folder("XDG_CACHE_HOME", ".cache") / "gradient-workbench/ddp"
    return folder / f"torch-{torch.__version__}-{python}-{source}" / f"{_NAME}.so"


@functools.cache
def load() -> Any:
    """Return the compiled module; None if it is missing for this PyTorch or cannot be loaded."""
    try:
        path = library()
        if not path.is_file():
            return None
        loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
        spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
        if spec is None:
            return None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except Exception:
        _logger.exception("The compiled process group for DDP cannot be loaded.")
        return None
    return module


def build(*, rebuild: bool = False) -> tuple[Path, bool]:
    """Compile the group for this PyTorch, unless the cache has it.

    Parameters
    ----------
    rebuild
        Compile the group in any case.

    Returns
    -------
    tuple
        The library's path, and whether it was compiled by this call.

    Raises
    ------
    WorkbenchError
        There is no compiler, or it failed; its output was shown.
    """
    path = library()
    if path.is_file() and not rebuild:
        return path, False
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        compiled = _compile(Path(work))
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(compiled.read_bytes())
    Path(temporary).chmod(0o755)
    Path(temporary).replace(path)  # another process may be loading the old file
    return path, True


def _compile(work: Path) -> Path:
    try:
        import setuptools  # type: ignore[import-untyped]
        from torch.utils.cpp_extension import BuildExtension, CppExtension
    except ImportError as error:
        raise WorkbenchError(
            f"The process group for DDP cannot be compiled: {error}. "
            "Install setuptools (pip install setuptools) and try again."
        ) from error
    extension = CppExtension(_NAME, [str(_SOURCE)], extra_compile_args=["-O2", "-g0"])
    options = BuildExtension.with_options(use_ninja=False, no_python_abi_suffix=True)
    distribution = setuptools.Distribution({"name": _NAME, "ext_modules": [extension]})
    distribution.cmdclass = {"build_ext": options}
    command: Any = distribution.get_command_obj("build_ext")
    command.build_lib = str(work / "lib")
    command.build_temp = str(work / "objects")
    try:
        command.ensure_finalized()
        command.run()
    except Exception as error:
        raise WorkbenchError(
            f"The process group for DDP could not be compiled for PyTorch {torch.__version__}: "
            f"{error}. Install a C++ compiler (Debian and Ubuntu: apt install g++) and Python's "
            "headers. Without it, the same times are recorded in Python, at about 15 us a bucket."
        ) from error
    return next((work / "lib").rglob("*.so"))
