"""Environments, wheels and folders for tests that build Horovod."""

import os
import subprocess
import sys
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from timers import BUILD_S

import workbench
from workbench.horovod_build.machine import Machine, TorchInfo

ROOT = Path(workbench.__file__).parents[1]
CPU_TORCH = TorchInfo("2.13.0+cpu", None, True, Path("/nowhere/torch"), None)
MACHINE = Machine("/usr/bin/c++", "c++ 12.2.0", ("-mavx",), "Linux-x86_64", "glibc-2.36")

needs_horovod = pytest.mark.skipif(
    find_spec("horovod") is None, reason="no Horovod is installed here: `workbench build-horovod`"
)


def environment_python(folder, *, shared=True):
    """An environment with the packages of this one (or none), and its interpreter."""
    venv.create(folder, with_pip=False)
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    paths = [str(ROOT)]
    if shared:
        paths += [path for path in sys.path if path.endswith("site-packages")]
    (site / "these.pth").write_text("\n".join(paths))
    return folder / "bin/python", site


def command_line(python, *arguments, **env):
    """`workbench build-horovod` in an environment, with `env` over this one's variables."""
    return subprocess.run(
        [python, "-m", "workbench", "build-horovod", *arguments],
        capture_output=True, text=True, env=os.environ | env, cwd="/", timeout=BUILD_S,
        check=False,
    )  # fmt: skip


def tiny_wheel(folder, name="horovod-0.28.1-py3-none-any.whl"):
    """A real, installable wheel of one line."""
    path = folder / name
    info = "horovod-0.28.1.dist-info"
    content = {
        "horovod/__init__.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = "".join(f"{entry},,\n" for entry in (*content, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as wheel:
        for entry, text in (*content.items(), (f"{info}/RECORD", rows)):
            wheel.writestr(entry, text)
    return path


def check_folder(name):
    """The folder of an installed package, without importing it."""
    return next(iter(find_spec(name).submodule_search_locations))
