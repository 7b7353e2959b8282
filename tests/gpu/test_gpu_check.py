"""The check of a machine with a GPU, as far as it can run without one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STEPS_S = 280


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU")
def test_without_a_gpu_nothing_is_checked(tmp_path):
    """That is said, and is no failure."""
    for command in ([str(HERE / "run"), str(tmp_path)], [sys.executable, str(HERE / "check.py")]):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=45, check=True, cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        assert "no NVIDIA GPU" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_step_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, str(HERE / "check.py"), "--cpu", "--only", "dpd", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=45, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no such step: dpd" in done.stdout


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_step_runs_on_cpus(tmp_path):
    """With Gloo; what needs a GPU is skipped, and says so."""
    done = subprocess.run(
        [
            sys.executable, str(HERE / "check.py"), "--cpu", "--skip", "horovod",
            "--out", str(tmp_path), "--limit", str(STEPS_S - 10),
        ],
        capture_output=True, text=True, timeout=STEPS_S, check=False,
    )  # fmt: skip
    report = json.loads((tmp_path / "report.json").read_text())
    found = {name: step["status"] for name, step in report["steps"].items()}
    assert done.returncode == 0, (tmp_path / "report.txt").read_text()
    assert {name for name, status in found.items() if status == "skipped"} == {
        "environment",
        "out_of_memory",
    }
    assert set(found.values()) <= {"ok", "skipped"}
    assert len(found) == 18
