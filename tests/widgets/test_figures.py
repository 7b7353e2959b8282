"""Figures for study: what is drawn is what was recorded."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from recorded import ENDS_MS, MS, NAMES, SIZES, RankClock, iteration_record, recorded, true_start

from workbench.errors import UsageError
from workbench.fabric import fit, ring_us
from workbench.timings import Timings
from workbench.widgets.rank_figures import ranks_figure
from workbench.widgets.sizes import sizes_figure
from workbench.widgets.static_figure import INK
from workbench.widgets.timings_figures import SUBCOMMANDS, timings_figure
from workbench.widgets.waterfall import waterfall_figure

VMS = {0: "vm1", 1: "vm2"}
FAR_CLOCKS = [RankClock(), RankClock(ahead_ns=7_200 * 10**9, ppm=30)]


def bars(figure, name):
    """The bars of one name: (rank, begin in ms, end in ms), by rank and time."""
    return sorted(
        (round(y), base, base + x)
        for bar in figure.data if bar.name == name
        for y, base, x in zip(bar.y, bar.base, bar.x, strict=True)
    )  # fmt: skip


# Waterfall


def test_the_waterfall_stacks_the_phases_of_each_rank():
    """Phases follow each other and fill the iteration, the late rank's data being longer."""
    timings = recorded(5, late_ms=2, vms=VMS)
    figure = waterfall_figure(timings, 3)
    frame = timings.to_frame()
    names = ["data", "copy", "forward", "backward", "exposed", "optimizer", "other"]
    for rank in (0, 1):
        own = [next(bar for bar in bars(figure, name) if bar[0] == rank) for name in names]
        for (_, _, end), (_, begin, _) in itertools.pairwise(own):
            assert begin == pytest.approx(end)
        row = frame[(frame["iteration"] == 3) & (frame["rank"] == rank)].iloc[0]
        assert own[-1][2] - own[0][1] == pytest.approx(row["iteration_us"] / 1e3)
    (_, *first), (_, *second) = bars(figure, "data")
    assert second[1] - first[1] == pytest.approx(2)


def test_the_waterfall_has_collectives_at_their_true_times():
    """Each is pale from when it was submitted, and then runs to its end."""
    figure = waterfall_figure(recorded(5, vms={0: "vm1", 1: "vm1"}), 2)
    queued, running = bars(figure, "queued"), bars(figure, "collective")
    assert len(queued) == len(running) == 2 * len(NAMES)
    for rank in (0, 1):
        begins = [begin for at, begin, _ in queued if at == rank]
        assert begins == pytest.approx([7, 7.5, 8])
        responses = [end for at, _, end in queued if at == rank]
        assert responses == [begin for at, begin, _ in running if at == rank]
        ends = [end for at, _, end in running if at == rank]
        assert ends == pytest.approx([end + 0.1 for end in ENDS_MS])


def test_the_waterfall_does_not_guess_how_long_a_collective_was_queued():
    """Only the whole of it is drawn where its response was not recorded."""
    figure = waterfall_figure(recorded(5, vms={0: "vm1", 1: "vm1"}, library=""), 2)
    assert bars(figure, "queued") == bars(figure, "collective") == []
    whole = bars(figure, "queued or transferred")
    assert [begin for at, begin, _ in whole if at == 0] == pytest.approx([7, 7.5, 8])
    ends = [end for at, _, end in whole if at == 0]
    assert ends == pytest.approx([end + 0.1 for end in ENDS_MS])


def test_collectives_under_way_at_once_do_not_cover_each_other():
    """They lie in rows of their own, within the band of their rank."""
    figure = waterfall_figure(recorded(5, late_ms=2, vms=VMS))
    (sure,) = [bar for bar in figure.data if bar.name == "collective"]
    placed = sorted(zip(sure.y, sure.width, sure.base, sure.x, strict=True))
    for (y, thick, begin, long), (other, _, start, more) in itertools.pairwise(placed):
        apart = other - y >= thick
        assert apart or begin + long <= start or start + more <= begin
    assert all(-0.5 < y - round(y) < 0.5 for y in sure.y)


def test_the_waterfall_aligns_clocks_and_says_how():
    """Ranks hours apart are drawn together, and the figure says what that rests on."""
    figure = waterfall_figure(recorded(60, FAR_CLOCKS, vms=VMS), 30)
    (_, first, _), (_, second, _) = bars(figure, "forward")
    assert abs(first - second) < 0.5
    notes = " ".join(note.text for note in figure.layout.annotations)
    assert "ends of shared collectives" in notes
    assert "only their sums are known" in notes


def test_the_waterfall_is_of_the_newest_complete_iteration():
    """By default the last that all ranks reported; its number is at the axis."""
    timings = recorded(8, more={0: [iteration_record(8, 0, RankClock())]})
    assert "iteration 7 (ms)" in waterfall_figure(timings).layout.xaxis.title.text


def test_no_such_iteration():
    """It says which there are."""
    with pytest.raises(UsageError, match="Choose from 0 to 4"):
        waterfall_figure(recorded(5), 120)


# Distribution by rank


def test_boxes_are_the_quantiles_of_each_rank():
    """Median and quarters of iteration and exposed time, without the first iteration."""
    timings = recorded(41, late_ms=2, vms=VMS)
    figure = ranks_figure(timings)
    frame = timings.to_frame()
    warm = frame[frame["iteration"] > 0]
    for box, column in zip(figure.data, ("iteration_us", "exposed_us"), strict=True):
        assert list(box.y) == ["rank 0 · vm1", "rank 1 · vm2"]
        by_rank = warm.groupby("rank")[column]
        for got, share in ((box.q1, 0.25), (box.median, 0.5), (box.upperfence, 0.95)):
            np.testing.assert_allclose(got, by_rank.quantile(share) / 1e3)
    titles = figure.layout.xaxis.title.text, figure.layout.xaxis2.title.text
    assert titles == ("iteration time (ms)", "exposed communication (ms)")


def test_a_figure_of_ranks_does_not_grow_with_the_run():
    """Ten times the iterations make a figure of the same size."""
    short, long = (len(ranks_figure(recorded(n)).to_json()) for n in (30, 300))
    assert abs(long - short) < 200


# Collectives by size


def test_points_are_buffers_and_their_service_time():
    """Each buffer is drawn at its bytes and its service time, as in the table of collectives."""
    timings = recorded(9, late_ms=2)
    (points,) = sizes_figure(timings).data
    table = timings.collectives()
    own = table[table["rank"] == 0].groupby(["iteration", "buffer"])
    size, service = own["bytes"].sum(), own["service_us"].first() / 1e3
    by_size = service.groupby(size.to_numpy()).median()
    assert len(points.x) > 0
    assert dict(zip(points.x, points.y, strict=True)) == pytest.approx(by_size.to_dict())
    assert points.name == "allreduce"


def test_without_service_times_points_are_the_least_time_over_ranks():
    """Waiting for the late rank is in no point, and the axis says that queueing is."""
    figure = sizes_figure(recorded(9, late_ms=2, world=3))
    (points,) = figure.data
    late_ms = [end + 0.1 - begin for end, begin in zip(ENDS_MS, (9, 9.5, 10), strict=True)]
    expected = dict(zip(SIZES, late_ms, strict=True))
    for size, took in zip(points.x, points.y, strict=True):
        assert took == pytest.approx(expected[size], abs=0.001)
    assert set(points.text) == set(NAMES)
    assert figure.layout.yaxis.title.text == "submitted to finished (ms)"


def test_lines_are_those_of_the_fabric():
    """Calibrated is the fitted line, nominal a ring at the link's rate; neither, unless known."""
    timings = recorded(3)
    fabric = fit([1_000, 1_000_000], [100, 900], 2)
    assert len(sizes_figure(timings).data) == 1
    points, calibrated, nominal = sizes_figure(timings, fabric, 10.0).data
    assert calibrated.name.startswith("calibrated, ± ")
    assert "ring of 2 at 10 Gbit/s" in nominal.name
    for line, model in (
        (calibrated, fabric.predict_us),
        (nominal, lambda size: ring_us(size, 2, 10.0)),
    ):
        assert min(line.x) == pytest.approx(min(points.x))
        assert max(line.x) == pytest.approx(max(points.x))
        assert list(line.y) == pytest.approx([model(size) / 1e3 for size in line.x])


def test_no_collectives_is_said():
    """An empty figure would suggest communication without cost."""
    with pytest.raises(UsageError, match="none was recorded"):
        sizes_figure(recorded(3, collectives=False))


# All of them


def luminance(color):
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def test_text_reads_on_light_and_on_dark():
    """Figures have no ground of their own; their ink has contrast to both themes'."""
    ink = luminance(INK)
    for ground in ("#ffffff", "#111111"):
        low, high = sorted((ink, luminance(ground)))
        assert (high + 0.05) / (low + 0.05) > 4
    timings = recorded(3)
    for figure in (waterfall_figure(timings), ranks_figure(timings), sizes_figure(timings)):
        assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0, 0, 0, 0)"
        assert figure.layout.font.color == INK


def test_every_axis_has_a_name_with_its_unit():
    """Except that of the ranks, which are named one by one."""
    timings = recorded(3)
    for figure in (waterfall_figure(timings), ranks_figure(timings), sizes_figure(timings)):
        layout = figure.layout.to_plotly_json()
        titles = [layout[name]["title"]["text"] for name in layout if name.startswith("xaxis")]
        assert all(re.search(r"\((ms|bytes)\)$", title) for title in titles)


def test_nothing_recorded():
    """Before a training ran each verb reports that."""
    cluster = SimpleNamespace(timings=Timings(), fabric=None, ranks=[])
    for verb in SUBCOMMANDS:
        with pytest.raises(UsageError, match=r"(?i)\btrain\b"):
            timings_figure(cluster, verb, [])


def test_verbs():
    """Each verb of `%timings` gives its figure, the waterfall of the iteration that is named."""
    fabric = fit([1_000, 1_000_000], [100, 900], 2)
    cluster = SimpleNamespace(timings=recorded(5), fabric=fabric, ranks=[])
    waterfall, ranks, sizes = (
        timings_figure(cluster, verb, words)
        for verb, words in (("waterfall", ["3"]), ("ranks", []), ("collectives", []))
    )
    assert "iteration 3" in waterfall.layout.xaxis.title.text
    assert "iteration time" in ranks.layout.xaxis.title.text
    assert [trace.name for trace in sizes.data] == ["allreduce", "calibrated, ± 0 %"]


@pytest.mark.parametrize(
    ("verb", "words"), [("waterfall", ["soon"]), ("waterfall", ["1", "2"]), ("ranks", ["3"])]
)
def test_words_that_mean_nothing(verb, words):
    """They are named, with what the verb takes."""
    cluster = SimpleNamespace(timings=recorded(1), fabric=None, ranks=[])
    with pytest.raises(UsageError, match=" ".join(words)):
        timings_figure(cluster, verb, words)


def test_a_run_on_the_common_clock_begins_at_zero():
    """The first rank's begin is the axis' origin."""
    figure = waterfall_figure(recorded(3, vms={0: "vm1", 1: "vm1"}), 1)
    assert min(begin for _, begin, _ in bars(figure, "data")) == 0
    assert true_start(1) > MS  # what the axis does not show


LOADING = """
import sys, threading
import plotly.graph_objects
from workbench.fabric import fit
begun, drawn = threading.Event(), threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas.core.api":
            begun.set()
            drawn.wait(3)  # it is not set before, where the figure waits for pandas

sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=__import__, args=("pandas",))
thread.start()
begun.wait()
from workbench.widgets.fabric_figures import calibration_figure
calibration_figure(fit([1000, 1_000_000], [100, 900], 2))
drawn.set()
thread.join()
"""


def test_pandas_is_loaded_by_another_thread():
    """The writer of a run does, through pyarrow: a figure waits for it, and does not fail."""
    subprocess.run([sys.executable, "-c", LOADING], check=True)
