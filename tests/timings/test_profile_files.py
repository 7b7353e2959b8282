"""The files of profiles in a run's folder, and what a profile costs."""

import math

import numpy as np

from workbench.timings.export.profile import RankProfile, durations_us
from workbench.timings.folder import MOST_PROFILES, RunFolder, new_profile
from workbench.timings.store import ROW
from workbench.wire import Flag
from workbench.wire.profile_messages import ProfileEnded


def test_oldest_profiles_and_unfinished_ones_are_removed(tmp_path):
    for number in range(1, MOST_PROFILES + 4):
        path = new_profile(tmp_path)
        assert path.name == f"profile-{number}.json.gz"
        path.touch()
    (tmp_path / "profile-99.json.gz.part").touch()
    new_profile(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    newest = range(5, MOST_PROFILES + 4)
    assert names == {f"profile-{number}.json.gz" for number in newest}


def test_profiles_are_removed_with_their_run(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.write_facts({})
    new_profile(run.path).touch()
    (run.path / "profile-2.json.gz.part").touch()
    assert run.remove()
    assert not run.path.exists()


def test_cost_is_of_the_iterations_in_the_profile():
    """Not of those in which its trace is written, nor of an earlier profile of the cell."""
    rows = np.zeros(10, ROW)
    rows["cell"], rows["iteration"] = 3, np.arange(10)
    took = np.array([90, 10, 70, 70, 10, 40, 40, 20, 10, 10]) * 1000
    rows["iteration_ns"], rows["start_ns"] = took, np.cumsum(took) - took
    rows["flags"][0] = Flag.FIRST_OF_CELL
    rows["flags"][[2, 3, 5, 6, 7]] = Flag.PROFILED
    began, ended = int(rows["start_ns"][5]) + 5, int(rows["start_ns"][7]) + 5
    profile = RankProfile(0, ProfileEnded(1, 3, 9, 5, 6, began, ended, (), ""), b"")
    assert durations_us(rows, [profile]) == (40.0, 10.0)
    nothing = RankProfile(0, ProfileEnded(1, 3, 9, 5, 6, 1, 2, (), ""), b"")
    assert math.isnan(durations_us(rows, [nothing])[0])
