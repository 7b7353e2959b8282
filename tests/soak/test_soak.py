"""A short run of random faults, and defects that such a run finds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from timers import BUILD_S

from .faults import KINDS, drawn
from .levels import LEAST, grown, growth_mb
from .report import percentile

ROOT = Path(__file__).parents[2]


def soak(*given):
    """Play faults in another process on three ranks of this machine."""
    command = [sys.executable, "-m", "tests.soak", "--where", "local", "--backend", "horovod"]
    environment = {name: value for name, value in os.environ.items() if name != "SOAK_RUN"}
    return subprocess.run(
        [*command, *given],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_twenty_faults(tmp_path):
    """They cost nothing but the ranks that they end, and leave nothing behind."""
    table = tmp_path / "faults.md"
    done = soak("--faults", "20", "--seed", "16", "--out", str(table))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 of 20 faults were played, 0 with a failure." in table.read_text()


@pytest.mark.soak
@pytest.mark.slow
def test_planted_defects():
    """Each of them is reported, with the seed and number of the fault that shows it."""
    done = soak(
        *("--only", "4", "--seed", "1", "--plant", "descriptor", "process", "variable", "sum")
    )
    assert done.returncode == 1, done.stdout + done.stderr
    failure = done.stdout.rpartition("FAILED: ")[2]
    assert "rank 0 has variable and sum (None, 7.0)" in failure
    assert "rank 1 has variable and sum" not in failure
    assert "the sum of a large tensor is wrong on ranks [0]" in failure
    assert "descriptors of the kernel instead of" in failure
    assert "processes instead of" in failure
    assert "seed 1" in done.stdout
    assert "local, horovod: fault 4: " in done.stdout


def test_growth_of_memory():
    """It is found below the noise of single faults, and a warm-up that ends is not growth."""
    noise = [(number * 7919) % 13 / 10 for number in range(2 * LEAST)]
    leaking = [100 + number / 50 + more for number, more in enumerate(noise)]
    assert growth_mb(leaking) == pytest.approx(2.0, abs=0.2)
    assert growth_mb([100 + more for more in noise]) == pytest.approx(0.0, abs=0.2)


def test_what_has_grown():
    allowed = {"processes": 3, "zombies": 0}
    assert grown({"processes": 3, "zombies": 0}, allowed) == ""
    assert grown({"processes": 5, "zombies": 0}, allowed) == "5 processes instead of 3"


def test_faults_of_a_seed():
    """A fault depends on the seed and its number only; a run has all kinds."""
    kinds = list(KINDS)
    run = [drawn(3, number, kinds) for number in range(300)]
    assert run[212] == drawn(3, 212, kinds)
    assert {fault.kind for fault in run} == set(kinds)
    assert run != [drawn(4, number, kinds) for number in range(300)]


def test_percentiles():
    assert percentile(list(range(1, 101)), 99) == 99
    assert percentile([3.0], 99) == 3.0
