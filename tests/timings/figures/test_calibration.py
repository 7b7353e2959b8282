"""What a calibration measures, and how far it may be off."""

import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from clusters import waiting_for
from true_figures import HEARD, causes, rows_of

from workbench.cluster import TextSink
from workbench.errors import RanksFailed
from workbench.fabric import calibration, fit
from workbench.fabric.calibration import REPETITIONS, SIZES_BYTES
from workbench.widgets.cluster_source import ClusterSource


def test_a_calibration_that_fits_badly_gives_no_advice():
    """A calibration's error is reported; a bad calibration is not used."""
    sizes = [1_000, 100_000, 1_000_000]
    good, bad = fit(sizes, [100, 500, 4_100], 2), fit(sizes, [3_000, 500, 4_100], 2)
    assert bad.error > 0.5
    said = causes(rows_of([4.0] * 20), bad)
    assert set(said) == {"exposed communication", "data loading"}
    evidence = said["exposed communication"].evidence
    assert f"calibration is unreliable (error {bad.error:.0%}): run" in evidence
    wire = causes(rows_of([4.0] * 20), good)["bytes on the wire"]
    assert f"± {good.error:.0%}" in wire.evidence
    assert wire.saving_us == pytest.approx(good.us_per_byte * 1_000_000 / 2)


@pytest.mark.parametrize("fabric", [None, fit([1_000, 10_000_000], [2_000, 12_000], 2)])
def test_few_bytes_are_not_reported_to_be_halved(fabric):
    """0.02 MB wait for latency: to halve them would save next to nothing."""
    said = causes(rows_of([4.0] * 20, size=20_000), fabric)
    assert not any("fp16" in cause.cure for cause in said.values())
    name = "exposed communication" if fabric is None else "latency of communication"
    assert "communicate less often" in said[name].cure


def test_the_view_shows_how_far_a_calibration_may_be_off(cluster, trained):
    """The error goes with the bandwidth; an unreliable one is not shown, and says why."""
    trained(HEARD["Horovod"])
    for times, reliable in (([500, 4_100], True), ([3_000, 500, 4_100], False)):
        cluster.fabric = fit([1_000, 100_000, 1_000_000][-len(times) :], times, 2)
        shown = ClusterSource(cluster).summary()
        assert shown.calibrated_error == cluster.fabric.error
        assert isinstance(shown.calibrated_gbps, float) is reliable
        if not reliable:
            assert "calibration is unreliable (error" in shown.calibrated_gbps.reason
    cluster.fabric = None


def test_a_calibration_sweeps_the_device_of_its_rank(cluster):
    """A `device` that cannot reduce is used, and fails; with the right one all is well."""
    cluster.run("kept, device = device, torch.device('meta')", sink=TextSink())
    with pytest.raises(RanksFailed, match="meta"):
        cluster.calibrate()
    cluster.run("device = kept", sink=TextSink())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a busy machine
        assert cluster.calibrate().n == 2
    cluster.fabric = None


def test_the_notice_is_not_about_a_cell_that_runs_before(cluster, capsys, monkeypatch, tmp_path):
    """A calibration that waits for its turn has not begun."""
    monkeypatch.setattr(calibration, "_NOTICE_S", 0.2)
    mark = tmp_path / "mark"
    before = cluster.run_in_background(waiting_for(mark), sink=TextSink())
    with warnings.catch_warnings(), ThreadPoolExecutor() as threads:
        warnings.simplefilter("ignore")  # a busy machine
        fabric = threads.submit(cluster.calibrate)
        time.sleep(1.0)
        printed = capsys.readouterr().err
        mark.touch()
        fabric.result()
    before.result()
    cluster.fabric = None
    assert printed == ""


DISTURBED = """
import time
kept, calls = hvd.allreduce_, 0
def allreduce_(tensor, **options):
    global calls
    calls += 1
    if calls <= {calls} and tensor.numel() == 1024:
        time.sleep(0.1)
    return kept(tensor, **options)
hvd.allreduce_ = allreduce_
"""


@pytest.mark.timing
def test_a_sweep_that_was_disturbed_is_repeated(cluster):
    """Another process takes the cores during the smallest size of the first sweep."""
    one_sweep = len(SIZES_BYTES) * (REPETITIONS + 2)
    cluster.run(DISTURBED.format(calls=one_sweep), sink=TextSink())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a busy machine
        fabric = cluster.calibrate()
    calls = cluster.run("hvd.allreduce_ = kept\ncalls", sink=TextSink()).values[0]
    cluster.fabric = None
    assert one_sweep < calls <= 3 * one_sweep  # a busy machine repeats less in a sweep
    assert fabric.measured_us[0] < 0.1e6


SLOW_FABRIC = """
import time
kept = hvd.allreduce_
def allreduce_(tensor, **options):
    time.sleep(tensor.numel() * 4 * 8 / {bits_per_s})
    return kept(tensor, **options)
hvd.allreduce_ = allreduce_
"""


@pytest.mark.timing
def test_a_slow_fabric_is_calibrated_within_seconds(cluster, capsys):
    """20 repetitions of 16 MB over 50 Mbit/s would take a minute; smaller ones suffice."""
    cluster.run(SLOW_FABRIC.format(bits_per_s=50e6), sink=TextSink())
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a busy machine
        fabric = cluster.calibrate()
    took_s = time.monotonic() - began
    cluster.run("hvd.allreduce_ = kept", sink=TextSink())
    cluster.fabric = None
    assert took_s < 30
    assert fabric.busbw_gbps == pytest.approx(0.05, rel=0.2)
    assert max(fabric.measured_us) > 0.3e6
    assert "calibrating: this fabric is slow or busy" in capsys.readouterr().err
