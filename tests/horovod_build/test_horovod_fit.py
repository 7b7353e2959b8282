"""Whether the Horovod of an environment fits its PyTorch, and the smoke test."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from horovod_environments import (
    check_folder,
    command_line,
    environment_python,
    needs_horovod,
    tiny_wheel,
)

from workbench.errors import BuildFailed
from workbench.horovod_build.machine import installed_torch
from workbench.horovod_build.patches import PATCHES
from workbench.horovod_build.smoke_test import run_smoke_test
from workbench.horovod_build.wheels import RECORD_NAME, add_record

pytestmark = pytest.mark.timeout(300)

# Whether it fits


def another_horovod(site, *, library=None, **changed):
    """A copy of the installed Horovod with a changed record, or another library."""
    package = Path(check_folder("horovod"))
    shutil.copytree(package, site / "horovod")
    info = next(package.parent.glob("horovod-*.dist-info"))
    shutil.copytree(info, site / info.name)
    record = site / info.name / RECORD_NAME
    known = json.loads(record.read_text()) if record.exists() else {}
    record.write_text(json.dumps(known | changed))
    if library is not None:
        next((site / "horovod/torch").glob("mpi_lib_v2*.so")).write_bytes(library)


def test_no_horovod_does_not_fit(tmp_path):
    """--check reports an environment without Horovod, with status 1."""
    python, _ = environment_python(tmp_path / "env", shared=False)
    done = command_line(python, "--check")
    assert done.returncode == 1
    assert "Horovod is not installed" in done.stdout


@pytest.mark.soak
@needs_horovod
def test_a_horovod_for_another_pytorch_does_not_fit(tmp_path):
    """After an upgrade of PyTorch --check names both, though the import still works."""
    python, site = environment_python(tmp_path / "env")
    another_horovod(site, torch="2.4.0+cpu")
    done = command_line(python, "--check")
    assert done.returncode == 1
    assert "built against PyTorch 2.4.0+cpu" in done.stdout
    assert "Operations: gloo" in done.stdout


@needs_horovod
def test_a_horovod_without_the_patches_is_to_be_rebuilt(tmp_path):
    """A Horovod from before a defect was patched is reported, with what to do."""
    python, site = environment_python(tmp_path / "env")
    one, *others = PATCHES
    another_horovod(site, torch=installed_torch().version, cures={one.name: one.digest()})
    done = command_line(python, "--check")
    assert done.returncode == 1
    without = ", ".join(patch.name for patch in others)
    assert f"Patches: {one.name}; without {without}." in done.stdout
    defects = "; ".join(patch.defect for patch in others)
    assert f"does not list the patches for these defects: {defects}. What to do:" in done.stdout


@pytest.mark.soak
@needs_horovod
def test_a_horovod_that_does_not_import_does_not_fit(tmp_path):
    """--check really imports: a library that the loader refuses does not fit."""
    python, site = environment_python(tmp_path / "env")
    another_horovod(site, library=b"\x7fELF and nothing more")
    done = command_line(python, "--check")
    assert done.returncode == 1
    assert "does not import (ImportError" in done.stdout


def test_what_it_was_built_against_travels_with_the_wheel(tmp_path):
    """The facts are installed with the package, and removed with it."""
    wheel, target = tiny_wheel(tmp_path), tmp_path / "site"
    add_record(wheel, {"torch": "2.13.0+cpu"})
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, "--no-index", "--no-deps", "--target", target, wheel], check=True)
    info = target / "horovod-0.28.1.dist-info"
    assert json.loads((info / RECORD_NAME).read_text()) == {"torch": "2.13.0+cpu"}
    assert f"{RECORD_NAME},sha256=" in (info / "RECORD").read_text()


# The smoke test


@needs_horovod
def test_two_ranks_agree():
    """The installed Horovod sums over two real ranks."""
    assert run_smoke_test() > 0


@needs_horovod
def test_a_smoke_test_that_takes_too_long_is_terminated():
    """No rank is left behind when the time is up, and the error says what was awaited."""
    before = rank_processes()
    with pytest.raises(BuildFailed, match="did not compute a sum within 1 s"):
        run_smoke_test(limit_s=1)
    assert rank_processes() <= before


def rank_processes():
    """The pids of smoke tests that run on this machine."""
    listed = subprocess.run(
        ["pgrep", "-f", "smoke_test_ranks.py"], capture_output=True, check=False
    )
    return set(listed.stdout.split())
