"""The trace for Perfetto: its format, what is in it, and one clock for all ranks."""

from __future__ import annotations

import errno
import itertools
from collections import defaultdict

import pytest
from recorded import (
    ENDS_MS,
    MS,
    NAMES,
    ONE_VM,
    PHASES_MS,
    SIZES,
    STEP_MS,
    RankClock,
    iteration_record,
    recorded,
    true_start,
)
from traces import check_format, nanoseconds, read, slices

from workbench.errors import UsageError
from workbench.wire import Flag

VMS = {0: "vm1", 1: "vm2"}
FAR_CLOCKS = [RankClock(), RankClock(ahead_ns=7_200 * 10**9, ppm=30)]


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_the_trace_keeps_the_formats_rules(tmp_path, name):
    """Fields, nesting, order, names and arrows are as the format asks, compressed or not."""
    timings = recorded(70, FAR_CLOCKS, late_ms=2, vms=VMS)
    path = timings.to_trace(tmp_path / name)
    trace = read(path)
    check_format(trace)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert trace["displayTimeUnit"] == "ms"


def test_a_process_is_a_rank_on_its_vm(tmp_path):
    """Each rank is a process that names its VM."""
    trace = read(recorded(2, vms=VMS).to_trace(tmp_path / "t.json"))
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert names == {"rank 0 on vm1", "rank 1 on vm2"}


def test_phases_fill_their_iteration(tmp_path):
    """Each iteration's slice is filled by its phases, which say that their place is a guess."""
    timings = recorded(3, vms=ONE_VM)
    trace = read(timings.to_trace(tmp_path / "t.json"))
    for whole in slices(trace, "iteration"):
        begin, end = nanoseconds(whole)
        parts = [
            nanoseconds(e) for e in slices(trace, "phase")
            if e["pid"] == whole["pid"] and begin <= nanoseconds(e)[0] < end
        ]  # fmt: skip
        assert len(parts) == len(PHASES_MS)
        assert parts[0][0] == begin
        assert parts[-1][1] == end
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
    assert {e["args"]["place"] for e in slices(trace, "phase")} == {
        "stacked: only the sum is known"
    }
    assert "only their sums" in trace["otherData"]["note"]


def test_collectives_are_at_their_true_times(tmp_path):
    """Name, kind, bytes, bandwidth, and the true time of the transfer."""
    timings = recorded(3, vms=ONE_VM)
    trace = read(timings.to_trace(tmp_path / "t.json"))
    found = [e for e in slices(trace, "collective") if e["pid"] == 0]
    assert [e["name"] for e in found] == [f"allreduce {name}" for name in NAMES] * 3
    for at, event in enumerate(found):
        args = event["args"]
        assert event["ts"] + event["dur"] == pytest.approx(true_end_us(at) + 100)
        parts = [args[f"{part}_us"] for part in ("queued", "copy_in", "transfer", "copy_out")]
        assert min(parts) > 0
        assert sum(parts) == pytest.approx(event["dur"])
        assert args["library"] == "GLOO_ALLREDUCE"
        assert args["kind"] == "allreduce"
        assert args["bytes"] == SIZES[at % 3]
        assert args["algbw_gbps"] == pytest.approx(args["bytes"] * 8 / event["dur"] / 1e3, rel=1e-3)
        assert args["busbw_gbps"] == args["algbw_gbps"]  # 2(n-1)/n is 1 for two ranks


def true_end_us(at):
    """When the transfer of the n-th collective ends, after the trace's begin."""
    return (true_start(at // 3) - true_start(0) + ENDS_MS[at % 3] * MS) / 1e3


def test_transfers_are_at_their_true_times(tmp_path):
    """A slice per buffer from its response on, which its copies and its transfer fill."""
    timings = recorded(3, vms=ONE_VM)
    trace = read(timings.to_trace(tmp_path / "t.json"))
    threads = {e["tid"] for e in slices(trace, "buffer")}
    names = {
        e["args"]["name"]
        for e in trace["traceEvents"]
        if e["name"] == "thread_name" and e["tid"] in threads
    }
    assert names == {"transfers", "transfers (2)"}  # in this run they overlap
    found = [e for e in slices(trace, "buffer") if e["pid"] == 0]
    assert [e["args"]["collectives"] for e in found] == [
        [f"allreduce {name}"] for name in NAMES
    ] * 3
    assert [e["args"]["bytes"] for e in found] == list(SIZES) * 3
    for at, event in enumerate(found):
        assert event["name"] == "GLOO_ALLREDUCE"
        parts = [
            e for e in slices(trace, "transfer")
            if (e["pid"], e["tid"]) == (0, event["tid"])
            and event["ts"] <= e["ts"] < event["ts"] + event["dur"]
        ]  # fmt: skip
        assert [e["name"] for e in parts] == ["copy in", "transfer", "copy out"]
        assert nanoseconds(parts[0])[0] == nanoseconds(event)[0]
        assert nanoseconds(parts[-1])[1] == nanoseconds(event)[1]
        assert parts[1]["ts"] + parts[1]["dur"] == pytest.approx(true_end_us(at))


def test_collectives_of_a_buffer_are_one_transfer(tmp_path):
    """What has the same response and transfer is drawn once, with the bytes of all."""
    together = iteration_record(0, 0, RankClock())
    together.flags |= Flag.OUTSIDE
    for name in ("responded", "began", "ended"):
        column = getattr(together, name)
        column[:] = type(column)("I", [column[-1]] * len(column))
    timings = recorded(1, vms=ONE_VM, more={0: [together]})
    trace = read(timings.to_trace(tmp_path / "t.json"))
    check_format(trace)
    found = [e for e in slices(trace, "buffer") if len(e["args"]["collectives"]) > 1]
    assert [e["args"]["bytes"] for e in found] == [sum(SIZES)]


def test_bandwidth_is_a_counter(tmp_path):
    """Each rank has a counter of its bus bandwidth, with the frame's values."""
    timings = recorded(3)
    trace = read(timings.to_trace(tmp_path / "t.json"))
    found = [
        e["args"]["Gbit/s"] for e in trace["traceEvents"]
        if e["ph"] == "C" and e["name"].startswith("busbw") and e["pid"] == 1
    ]  # fmt: skip
    frame = timings.to_frame()
    assert found == frame[frame["rank"] == 1]["busbw_gbps"].tolist()


def test_arrows_lead_from_the_late_rank(tmp_path):
    """The rank that submits last is where each collective's arrow begins; none where nobody is."""
    for late_ms, expected in ((3, {(1, 0)}), (0, set())):
        timings = recorded(4, late_ms=late_ms, vms=ONE_VM)
        events = read(timings.to_trace(tmp_path / "t.json"))["traceEvents"]
        starts = {e["id"]: e["pid"] for e in events if e["ph"] == "s"}
        ends = {e["id"]: e["pid"] for e in events if e["ph"] == "f"}
        assert {(starts[key], ends[key]) for key in starts} == expected
        assert len(starts) == 4 * len(NAMES) * len(expected)


def test_no_arrow_where_the_latest_rank_may_be_missing(tmp_path):
    """Of three ranks, one has not reported: it may be the one for which the others waited."""
    timings = recorded(4, late_ms=3, vms=ONE_VM, world=3)
    events = read(timings.to_trace(tmp_path / "t.json"))["traceEvents"]
    assert [e for e in events if e["ph"] in "sf"] == []


# Clocks


def skews_us(trace):
    """How far apart the two ranks' same iterations begin, which in truth is not at all."""
    begins = defaultdict(dict)
    for event in slices(trace, "iteration"):
        begins[event["name"]][event["pid"]] = event["ts"]
    return [at[1] - at[0] for at in begins.values()]


@pytest.mark.parametrize("collectives", [True, False])
def test_ranks_of_different_vms_are_aligned_by_what_ends_together(tmp_path, collectives):
    """Hours apart and drifting, they come within the uncertainty that the trace states."""
    timings = recorded(200, FAR_CLOCKS, vms=VMS, collectives=collectives)
    trace = read(timings.to_trace(tmp_path / "t.json"))
    about = trace["otherData"]
    what = "collectives" if collectives else "exposed communication"
    assert f"the ends of shared {what}" in about["clock_alignment"]
    assert max(map(abs, skews_us(trace))) <= about["clock_uncertainty_us"]["1"] + 1
    assert about["clock_uncertainty_us"]["1"] < 1000


def test_ranks_of_one_vm_share_its_clock(tmp_path):
    """Nothing is moved, and nothing is uncertain."""
    trace = read(recorded(3, vms=ONE_VM).to_trace(tmp_path / "t.json"))
    assert trace["otherData"]["clock_alignment"].startswith("one machine")
    assert trace["otherData"]["clock_uncertainty_us"] == {"0": 0.0, "1": 0.0}
    assert skews_us(trace) == [0, 0, 0]


class TrueClocks:
    """Knows the offset of the ranks' clocks from the common one."""

    def to_kernel(self, rank, t_ns):
        clock = FAR_CLOCKS[rank]
        since = (t_ns - clock.ahead_ns - 10**12) / (1 + clock.ppm * 1e-6)
        return 10**12 + since, 2_000.0


@pytest.mark.parametrize("clocks", [TrueClocks(), TrueClocks().to_kernel])
def test_clocks_that_were_compared_are_used(tmp_path, clocks):
    """An object or a callable maps the ranks' times; its uncertainty is given."""
    timings = recorded(50, FAR_CLOCKS, vms=VMS)
    trace = read(timings.to_trace(tmp_path / "t.json", clocks=clocks))
    check_format(trace)
    assert max(map(abs, skews_us(trace))) < 0.01
    assert trace["otherData"]["clock_uncertainty_us"] == {"0": 2.0, "1": 2.0}


def test_pings_are_used_where_there_were_some(tmp_path):
    """If the cluster compared clocks, ranks of different VMs are aligned by that."""
    timings = recorded(50, FAR_CLOCKS, vms=VMS)
    for rank, clock in enumerate(FAR_CLOCKS):
        for at in range(0, 50, 2):
            now = true_start(at)
            timings.clocks.current.add(rank, now - 20_000, clock.read(now), now + 20_000)
    trace = read(timings.to_trace(tmp_path / "t.json"))
    check_format(trace)
    about = trace["otherData"]
    assert about["clock_alignment"].startswith("pings")
    assert max(map(abs, skews_us(trace))) <= sum(about["clock_uncertainty_us"].values())
    assert max(about["clock_uncertainty_us"].values()) < 100


def test_collectives_outside_of_iterations_have_their_own_threads(tmp_path):
    """What a cell reduces directly between two steps is there, and not among the gradients."""
    outside = iteration_record(0, 0, RankClock())
    outside.flags |= Flag.OUTSIDE
    outside.start_ns = true_start(1) + 21 * MS
    timings = recorded(4, vms=ONE_VM, more={0: [outside]})
    trace = read(timings.to_trace(tmp_path / "t.json"))
    check_format(trace)
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace["traceEvents"] if e["name"] == "thread_name"
    }  # fmt: skip
    found = [
        e for e in slices(trace, "collective")
        if threads[e["pid"], e["tid"]].startswith("collectives outside iterations")
    ]  # fmt: skip
    assert [e["pid"] for e in found] == [0] * len(NAMES)
    assert found[0]["ts"] == pytest.approx((STEP_MS + 21 + 7) * 1e3)


# Bad input


def test_some_iterations(tmp_path):
    """Only those that were asked for are written, and clearly none where there are none."""
    timings = recorded(10)
    trace = read(timings.to_trace(tmp_path / "t.json", iterations=(3, 4)))
    assert {e["name"] for e in slices(trace, "iteration")} == {"iteration 3", "iteration 4"}
    with pytest.raises(UsageError, match=r"iterations=50, 60: .* Choose from 0 to 9."):
        timings.to_trace(tmp_path / "u.json", iterations=(50, 60))
    assert not (tmp_path / "u.json").exists()


@pytest.mark.parametrize("given", [5, (5,), (1, 2, 3), ("1", "2"), None])
def test_iterations_that_are_no_pair(tmp_path, given):
    """One number, or three, are a clear error; None means all."""
    timings, path = recorded(10), tmp_path / "t.json"
    if given is None:
        assert len(slices(read(timings.to_trace(path, iterations=given)), "iteration")) == 20
        return
    with pytest.raises(UsageError, match="must be a pair of integers"):
        timings.to_trace(path, iterations=given)
    with pytest.raises(UsageError, match="must be a pair of integers"):
        timings.to_hta(tmp_path / "hta", iterations=given)


def test_a_folder_that_is_not_there(tmp_path):
    """The error names it."""
    with pytest.raises(UsageError, match=r"folder .*nowhere does not exist"):
        recorded(1).to_trace(tmp_path / "nowhere" / "t.json")


def test_a_trace_that_fails_leaves_nothing(tmp_path):
    """Half a trace is not left behind."""

    def broken(rank, t_ns):
        if t_ns > true_start(5):
            raise RuntimeError("this clock is broken")
        return t_ns, 0.0

    with pytest.raises(RuntimeError, match="this clock"):
        recorded(10).to_trace(tmp_path / "t.json", clocks=broken)
    assert list(tmp_path.iterdir()) == []


class UnreadableClocks:
    """Clocks in a file that cannot be read."""

    def to_kernel(self, rank, t_ns):
        if t_ns <= true_start(1):
            return t_ns, 0.0
        raise OSError(errno.EIO, "Input/output error", "clocks.csv")


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_read_error_is_no_write_error(tmp_path, name):
    """It is raised as it is, and nothing remains; a full disk is named with the file."""
    timings = recorded(3)
    with pytest.raises(OSError, match=r"clocks\.csv"):
        timings.to_trace(tmp_path / name, clocks=UnreadableClocks())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"{name}.part").symlink_to("/dev/full")
    with pytest.raises(UsageError, match=rf"{name}: cannot be written \(No space left on device\)"):
        timings.to_trace(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
