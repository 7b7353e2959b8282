"""The files of profiles in a run's folder, and what a profile costs."""

import contextlib
import gzip
import json
import math
import time

import numpy as np
import pytest
import traces
from recorded import ONE_VM, recorded, true_start
from timers import InThread

from workbench.errors import UsageError
from workbench.timings.export.profile import RankProfile, durations_us, write
from workbench.timings.folder import MAX_PROFILES, RunFolder, new_profile
from workbench.timings.store import ROW
from workbench.wire import Flag
from workbench.wire.profile_messages import MARK, ProfileEnded

BASE_NS = true_start(0)
PROCESS = 77


def profile_of(rank, events):
    """What a rank reports whose profiler has recorded these events from iteration 1 to 9."""
    times = [true_start(at) + 2000 * number for at in (1, 9) for number in range(8)]
    common = {"pid": PROCESS, "tid": PROCESS, "dur": 0.1, "ph": "X", "cat": "user_annotation"}
    marks = [{"name": MARK, "ts": (at - BASE_NS) / 1e3, **common} for at in times]
    content = {"traceEvents": marks + events, "baseTimeNanoseconds": BASE_NS}
    around = tuple(at + off for at in times for off in (-500, 500))
    ended = ProfileEnded(1, 1, 0, 1, 8, times[0], times[-1], around, "")
    return RankProfile(rank, ended, gzip.compress(json.dumps(content, indent=1).encode()))


def operator(number, begin_us, took_us, **more):
    """A slice of the profiler, as it writes them."""
    args = {"External id": number, "Ev Idx": number, "Input Dims": [[256, 256], [32, 256]]}
    common = {"pid": PROCESS, "tid": PROCESS, "cat": "cpu_op", "ph": "X", "args": args}
    return {"name": "aten::mm", "ts": begin_us, "dur": took_us, **common, **more}


def test_arrows_end_on_the_lane_of_their_slices(tmp_path):
    """Operations that overlap are on several lanes of a thread."""
    at = (true_start(2) - BASE_NS) / 1e3
    arrow = {"id": 5, "cat": "ac2g", "pid": PROCESS, "tid": PROCESS}
    overlapping = [
        operator(1, at, 10),
        operator(2, at + 5, 10),
        {"ph": "s", "ts": at, **arrow},
        {"ph": "f", "ts": at + 5, **arrow},
    ]
    path = tmp_path / "profile.json"
    write(recorded(vms=ONE_VM), path, [profile_of(0, overlapping)])
    trace = traces.read(path)
    traces.check_format(trace)
    ends = {e["ph"]: e["tid"] for e in trace["traceEvents"] if e.get("cat") == "ac2g"}
    lanes = [e["tid"] for e in traces.slices(trace, "cpu_op")]
    assert ends == {"s": lanes[0], "f": lanes[1]}
    assert lanes[0] != lanes[1]


@pytest.mark.parametrize("cut", [0.2, 0.9999])
def test_a_damaged_trace_is_refused(tmp_path, cut):
    """Also if only its end is missing, and whatever it was cut in."""
    whole = profile_of(0, [operator(1, 10, 10)])
    text = gzip.decompress(whole.data)
    damaged = whole._replace(data=gzip.compress(text[: int(len(text) * cut)]))
    with pytest.raises(UsageError, match="damaged"):
        write(recorded(vms=ONE_VM), tmp_path / "profile.json", [damaged])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [
        b"no gzip",
        gzip.compress(b'{"traceEvents": []}')[:-9],
        gzip.compress(b'{"traceEvents": [1]}'),
        gzip.compress(b'{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1}]}'),
        gzip.compress(b'{"traceEvents": ' + b"[" * 100_000),
    ],
    ids=["no gzip", "cut", "number", "no times", "deep"],
)
def test_a_trace_that_is_no_trace_is_refused(tmp_path, data):
    """Whatever is wrong with it, the error says what to do."""
    wrong = profile_of(0, [])._replace(data=data)
    with pytest.raises(UsageError, match="Profile again"):
        write(recorded(vms=ONE_VM), tmp_path / "profile.json", [wrong])


def large_profile():
    """A profile of 150,000 operators."""
    took = (true_start(9) - true_start(1)) / 1e3 / 150_000
    begins = (true_start(1) - BASE_NS) / 1e3 + took * np.arange(150_000)
    return profile_of(0, [operator(at, one, took / 2) for at, one in enumerate(begins.tolist())])


@pytest.mark.timing
def test_cells_go_on_while_a_large_profile_is_written(tmp_path):
    """Another thread never has Python's lock for long."""
    profile, run = large_profile(), recorded(vms=ONE_VM)
    writer = InThread(write, run, tmp_path / "p.json.gz", [profile]).thread
    worked = time.pthread_getcpuclockid(writer.ident)  # does not count what other processes take
    longest = last = 0.0
    while writer.is_alive():
        time.sleep(0.001)
        now = last
        with contextlib.suppress(OSError):  # it has just ended
            now = time.clock_gettime(worked)
        longest, last = max(longest, now - last), now
    assert 0 < longest < 0.4


def test_oldest_profiles_and_unfinished_ones_are_removed(tmp_path):
    for number in range(1, MAX_PROFILES + 4):
        path = new_profile(tmp_path)
        assert path.name == f"profile-{number}.json.gz"
        path.touch()
    (tmp_path / "profile-99.json.gz.part").touch()
    new_profile(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    newest = range(5, MAX_PROFILES + 4)
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
