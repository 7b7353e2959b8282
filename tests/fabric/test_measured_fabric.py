"""A fabric whose true rates are known: links of test VMs, measured by their ranks."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from levels import in_soak
from timers import eventually, when
from vm_sets import vms

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import CellInterrupted, UsageError
from workbench.fabric import BandwidthMatrix, fit, tcp_efficiency
from workbench.fabric.matrix import SLOW, measure
from workbench.fabric_magics import FabricMagics
from workbench.ranks import RankInfo
from workbench.testbed import why_not
from workbench.widgets.fabric_figures import calibration_figure, matrix_html
from workbench.widgets.fabric_view import links_figure
from workbench.widgets.static_figure import static_html

GBPS, SLOW_GBPS = 0.5, 0.2
LOADED = 0.35
"""The relative error of interpolated times that other load of this machine may cause."""
SLOW_VM = "vm3 sends to and receives from all others slowly"
SHAPED_FRAMING_BYTES = 14
"""The shaped links count Ethernet's header, and no more."""


@pytest.fixture(scope="module")
def machines():
    if why_not() is not None:
        pytest.skip(str(why_not()))
    with vms(3, gbps=GBPS) as machines:
        yield machines


def calibrated(cluster):
    """Return a calibration without a caveat, or the last one if this machine is always busy.

    A load that disturbs a small size more than a large one makes the bandwidth too high.
    """
    fabrics = []

    def has_no_caveat():
        fabrics.append(cluster.calibrate(seconds=3))
        return not fabrics[-1].caveat

    eventually(has_no_caveat)
    return fabrics[-1]


def about_vms(matrix):
    """Return what a matrix says is slow, without pairs that share a link."""
    return [text for text in matrix.slow if not text.startswith("pairs at")]


@pytest.fixture(scope="module", params=["horovod", in_soak("ddp")])
def measured(request, machines):
    """Three VMs, of which the third is slow, with what was measured on them."""
    machines.shape("vm3", GBPS)
    cluster = wb.Cluster(
        hosts=machines.hosts(), ssh_config=machines.ssh_config, backend=request.param
    )
    with cluster, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a busy machine
        even = calibrated(cluster)
        machines.shape("vm3", SLOW_GBPS)
        slow = calibrated(cluster)
        matrices = []

        def names_a_vm():
            """Measure once more; on a busy machine, times may differ too much to name a VM."""
            matrices.append(cluster.bandwidth_matrix())
            return [text.startswith(SLOW_VM) for text in about_vms(matrices[-1])] == [True]

        eventually(names_a_vm)
        yield SimpleNamespace(cluster=cluster, even=even, slow=slow, matrix=matrices[-1])


@pytest.mark.timeout(200)  # it starts the cluster and measures until the machine is idle
def test_the_ring_is_as_fast_as_its_slowest_link(measured):
    """The bus bandwidth is less than the link's payload, and that of the slow one is the least.

    Without the factor 2(n-1)/n, or in bytes, it would be outside. Other load makes it only lower:
    `tests/bench/fabric.py` has the exact errors, for which the machine must be idle.
    """
    payload = tcp_efficiency(1500, SHAPED_FRAMING_BYTES)
    even, slow = measured.even.busbw_gbps, measured.slow.busbw_gbps
    assert slow < even <= 1.1 * GBPS * payload
    assert SLOW_GBPS * payload / 2 < slow <= 1.1 * SLOW_GBPS * payload


def test_sizes_that_were_not_swept_are_predicted(measured):
    """Where the link decides the time, the load of this machine matters little."""
    large = [error for size, _, error in measured.even.held_out if size > 500_000]
    assert large
    assert np.median(large) < LOADED


def test_the_slow_vm_is_named(measured):
    """Both of its directions are slow; the others are not."""
    (said,) = about_vms(measured.matrix)
    assert said.startswith(SLOW_VM)
    assert "slow: vm3" in repr(measured.matrix)
    assert "<b>Slow:</b> vm3" in matrix_html(measured.matrix)


def test_figures_show_measured_and_nominal(measured):
    """The weakest hop is named, and no value of a figure is NaN."""
    figures = (links_figure(measured.cluster), calibration_figure(measured.slow, SLOW_GBPS))
    for figure in figures:
        for trace in figure.data:
            assert np.isfinite(np.array([*trace.x, *trace.y], float)).all()
        html = static_html(figure, "figure", figure._values)
        assert "nan" not in html.lower()
    links, calibration = figures
    assert {"nominal", "measured", "weakest hop"} == {trace.name for trace in links.data}
    notes = [note.text for note in links.layout.annotations]
    assert notes[0].startswith("Weakest hop of the ring: NIC eth0 of vm1, 10 Gbit/s: 1.25 GB/s")
    names = [trace.name for trace in calibration.data]
    assert names == ["measured", "held out", "calibrated", f"nominal, {SLOW_GBPS} Gbit/s"]


def test_copies_are_measured_on_each_vm(measured):
    assert set(measured.even.devices) == {"vm1", "vm2", "vm3"}
    assert all(rates["host memory"] > 0 for rates in measured.even.devices.values())
    assert "Copies on 3 VMs: host memory" in repr(measured.even)


def test_an_interrupted_matrix_leaves_the_ranks_as_they_were(measured, capsys):
    stop = when(lambda: capsys.readouterr().out, measured.cluster.interrupt)
    with pytest.raises(CellInterrupted):
        measured.cluster.bandwidth_matrix()
    stop.join()
    assert measured.cluster.run("rank", sink=TextSink()).values == {0: 0, 1: 1, 2: 2}


CELLS = ((None, 10.0, 10.0), (3.0, None, 10.0), (10.0, 9.0, None))


def test_one_slow_link_is_named_and_no_vm():
    (said,) = BandwidthMatrix(("a", "b", "c"), CELLS, CELLS).slow
    assert said == "b to a: 3.00 of 10.00 Gbit/s"


def test_one_rate_that_is_too_high_makes_no_link_slow():
    """Of two times that are nearly equal by chance comes an absurd rate."""
    cells = ((None, 10.0, 10.0), (900.0, None, 10.0), (10.0, 9.0, None))
    assert BandwidthMatrix(("a", "b", "c"), cells, cells).slow == ()


def test_times_within_the_noise_give_no_rate():
    """A small and a large transfer differ by less than two of the same size."""
    clear, noisy = [[0.01, 0.011], [0.04, 0.041]], [[0.03, 0.05], [0.04, 0.041]]
    answers = [[clear, noisy, clear, clear], [noisy], [noisy]]  # the second is b to a alone

    def run(source, show):
        return dict.fromkeys((0, 1), (1 << 20, answers.pop(0)))

    found = measure(run, {"a": 0, "b": 1})
    assert found.alone_gbps[0][1] == pytest.approx(0.75 * (1 << 20) * 8e-9 / 0.03)
    assert found.alone_gbps[1][0] is None
    assert found.slow == ()
    assert found.unknown.startswith("b to a: repeated transfers differ too much")
    assert found.unknown in repr(found)
    assert "<b>Unknown:</b> b to a" in matrix_html(found)


def test_times_within_the_noise_are_measured_again():
    """Only those; the result has no unknown rate."""
    clear, noisy = [[0.01, 0.011], [0.04, 0.041]], [[0.03, 0.05], [0.04, 0.041]]
    answers = [[clear, noisy, clear, clear], [noisy], [clear]]

    def run(source, show):
        return dict.fromkeys((0, 1), (1 << 20, answers.pop(0)))

    found = measure(run, {"a": 0, "b": 1})
    assert found.alone_gbps[1][0] == found.alone_gbps[0][1]
    assert found.unknown == ""


def test_pairs_that_share_a_link_are_reported():
    """Alone each has all of it; at once each has its share."""
    half = tuple(tuple(x and x * SLOW / 2 for x in row) for row in CELLS)
    said = BandwidthMatrix(("a", "b", "c"), CELLS, half).slow
    assert said[-1].startswith("pairs at the same time have 38% of what one pair has alone")


def test_what_could_not_be_measured_is_a_dash():
    nothing = ((None, None), (None, None))
    matrix = BandwidthMatrix(("a", "b"), nothing, nothing)
    assert matrix.slow == ()
    assert "nan" not in repr(matrix) + matrix_html(matrix)


@pytest.mark.parametrize(
    "line",
    ["show --stored", "matrix --seconds 3", "matrix vm1.json", "show --ranks 2", "scaling"],
)
def test_words_that_do_not_fit_the_verb(line):
    with pytest.raises(UsageError, match=f"^%fabric {line}"):
        FabricMagics(shell=None).fabric(line)


def test_a_flat_calibration_has_no_mark_for_the_nic():
    """Two VMs whose NICs have no measured rate then; the reason is below the figure."""
    flat = replace(fit([1000, 2000], [100, 99], 2), devices={"vm1": {"host memory": 9.0}})
    infos = [
        RankInfo(rank, f"vm{rank + 1}", 1, "CPU", "any", "eth0", "ready", 1) for rank in (0, 1)
    ]
    cluster = SimpleNamespace(
        ranks=infos, fabric=flat, snapshot=lambda: dict.fromkeys(("vm1", "vm2"), wb.take_snapshot())
    )
    figure = links_figure(cluster)
    (measured,) = [trace for trace in figure.data if trace.name == "measured"]
    assert list(measured.x) == [9.0]
    assert "no bandwidth: measure larger sizes" in repr(figure._values)


def test_without_a_cluster_it_is_this_machine():
    figure = links_figure(None)
    assert "host memory" in repr(figure._values)


def test_one_rank_has_no_fabric(cluster_of_one):
    for method in (cluster_of_one.calibrate, cluster_of_one.bandwidth_matrix):
        with pytest.raises(UsageError, match="1 rank"):
            method()


@pytest.fixture(scope="module")
def cluster_of_one():
    with wb.Cluster(n=1) as cluster:
        yield cluster
