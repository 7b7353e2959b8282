"""Reading traces, and the rules of their format."""

import gzip
import json
import math
from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate


def read(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def slices(trace, category):
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == category]


def check_format(trace):
    """The rules of "Trace Event Format" for the kinds of events that we write."""
    required = {
        "X": {"name", "cat", "ts", "dur", "pid", "tid", "args"},
        "M": {"name", "pid", "tid", "args"},
        "C": {"name", "ts", "pid", "tid", "args"},
        "s": {"name", "cat", "id", "ts", "pid", "tid"},
        "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
    }
    threads, flows, named, tracks = defaultdict(list), defaultdict(list), set(), set()
    for event in trace["traceEvents"]:
        assert required[event["ph"]] <= set(event), event
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        track = event["pid"], event["tid"]
        if event["ph"] == "M":
            assert event["name"] in {
                "process_name", "process_sort_index", "thread_name", "thread_sort_index",
            }  # fmt: skip
            (value,) = event["args"].values()
            assert isinstance(value, str if event["name"].endswith("_name") else int)
            named.add((event["name"], *track))
            continue
        assert math.isfinite(event["ts"])
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert ("thread_name", *track) in named
            threads[track].append(event)
        elif event["ph"] == "C":
            assert all(isinstance(v, int | float) for v in event["args"].values())
        else:
            flows[event["id"]].append(event)
        tracks.add(event["pid"])
    assert {pid for name, pid, _ in named if name == "process_name"} == tracks
    for events in threads.values():
        check_nesting(events)
    spans = {track: Spans(events) for track, events in threads.items()}
    for pair in flows.values():
        check_flow(pair, spans)


def nanoseconds(event):
    return round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)


def check_nesting(events):
    """Slices of one thread are in order, and each is completely inside or outside the others."""
    open_ends = []
    begins = [nanoseconds(event)[0] for event in events]
    assert begins == sorted(begins)
    for event in events:
        begin, end = nanoseconds(event)
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], event
        open_ends.append(end)


class Spans:
    """The slices of a thread, which are in order: to look up thousands of times in them."""

    def __init__(self, events):
        spans = [nanoseconds(event) for event in events]
        self._begins = [begin for begin, _ in spans]
        self._latest_ends = list(accumulate((end for _, end in spans), max))

    def contain(self, at):
        """Whether a time is within a slice."""
        begun = bisect_right(self._begins, at)
        return begun > 0 and self._latest_ends[begun - 1] >= at


def check_flow(pair, spans):
    """An arrow has one start and one end, not earlier, each within a slice of its thread."""
    start, finish = pair
    assert (start["ph"], finish["ph"]) == ("s", "f")
    assert start["ts"] <= finish["ts"]
    for event in pair:
        assert spans[event["pid"], event["tid"]].contain(round(event["ts"] * 1e3)), event
