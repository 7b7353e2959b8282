"""What a calibration measures, and how far it may be off."""

import json
import re
import warnings
from dataclasses import replace

import pytest
from clusters import waiting_for
from timers import InThread, eventually, when
from true_figures import HEARD, causes, rows_of

from workbench.cluster import TextSink
from workbench.errors import CellInterrupted, UsageError
from workbench.fabric import calibration, fit, matrix, stored
from workbench.timings.runs import runs_folder
from workbench.widgets.cluster_source import ClusterSource
from workbench.widgets.fabric_figures import calibration_figure


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
    assert not any("fp16" in cause.change for cause in said.values())
    name = "exposed communication" if fabric is None else "latency of communication"
    assert "communicate less often" in said[name].change


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
    """Whatever a cell has called `device`; this one could not reduce."""
    cluster.run("import torch\nkept, device = device, torch.device('meta')", sink=TextSink())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a busy machine
        assert cluster.calibrate(seconds=1).n == 2
    cluster.run("device = kept", sink=TextSink())
    cluster.fabric = None


@pytest.mark.soak
def test_progress_begins_with_the_measurement(cluster, capsys, tmp_path):
    """A calibration that waits for its turn shows nothing; its line ends with "done"."""
    mark = tmp_path / "mark"
    before = cluster.run_in_background(waiting_for(mark), sink=TextSink())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a busy machine
        fabric = InThread(cluster.calibrate, seconds=1)
        waiting = eventually(lambda: "".join(capsys.readouterr()))
        mark.touch()
        fabric.join()
    before.result()
    cluster.fabric = None
    assert waiting.startswith("this cell: waiting for the cells that were queued before")
    shown = capsys.readouterr().out
    assert re.match(r"\rcalibrating: \d+%", shown)
    assert re.search(r"%\rcalibrating: done *\n$", shown)


def test_an_interrupted_calibration_leaves_the_ranks_as_they_were(cluster, capsys):
    """Nothing is stored, and the next cell runs."""
    stop = when(lambda: capsys.readouterr().out, cluster.interrupt)
    with pytest.raises(CellInterrupted):
        cluster.calibrate(seconds="10m")
    stop.join()
    assert cluster.fabric is None
    assert cluster.run("rank", sink=TextSink()).values == {0: 0, 1: 1}


REPLACED = """
import time
kept, calls = hvd.allreduce_, 0
def allreduce_(tensor, **options):
    global calls
    calls += tensor.numel() == 1024
    {delay}
    return kept(tensor, **options)
hvd.allreduce_ = allreduce_
"""
DISTURBED = "if tensor.numel() == 1024 and calls % 3: time.sleep(0.4)"
SLOW = "time.sleep(tensor.numel() * 4 * 8 / 50e6)"


@pytest.fixture
def replaced(cluster):
    """Calibrate with another allreduce."""

    def calibrate(delay, seconds):
        cluster.run(REPLACED.format(delay=delay), sink=TextSink())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a busy machine
            return cluster.calibrate(seconds=seconds)

    yield calibrate
    cluster.run("hvd.allreduce_ = kept", sink=TextSink())
    cluster.fabric = None


def test_what_other_processes_disturb_does_not_count(replaced):
    """They take the cores during two of three repetitions of the smallest size."""
    assert replaced(DISTURBED, 4).measured_us[0] < 0.4e6


@pytest.mark.soak
def test_over_a_slow_fabric_fewer_sizes_are_measured(replaced):
    """20 repetitions of 16 MB over 50 Mbit/s would take a minute; smaller ones suffice."""
    fabric = replaced(SLOW, 8)
    assert fabric.sizes_bytes[-1] < 16 << 20
    assert fabric.busbw_gbps == pytest.approx(0.05, rel=0.2)


def test_a_calibration_is_kept_for_such_clusters(cluster):
    """It is offered again; that of another cluster is refused with the difference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a busy machine
        measured = cluster.calibrate(seconds=1)
    cluster.fabric = None
    assert len(measured.held_out_noise) == len(measured.held_out) > 0
    assert f"up to {max(measured.held_out_noise):.1%}" in repr(measured)
    assert cluster.stored_calibration() == measured
    assert cluster.calibrate(stored=True) == cluster.fabric == measured
    other = replace(measured, context=measured.context | {"VMs": "vm1:1, vm2:1"})
    with pytest.raises(UsageError, match=r"another cluster \(VMs: vm1:1, vm2:1 there, .* here\)"):
        cluster.calibrate(stored=other)
    cluster.fabric = None
    (file,) = (runs_folder() / "calibrations").iterdir()
    file.write_text('{"n": 2}')
    with pytest.raises(UsageError, match="not a calibration"):
        cluster.calibrate(stored=True)
    file.unlink()
    with pytest.raises(UsageError, match="no calibration of such a cluster is stored"):
        cluster.calibrate(stored=True)


def test_a_calibration_that_cannot_be_stored_is_used(cluster):
    """What was measured is not lost with the disk; the warning names the reason."""
    folder = runs_folder() / "calibrations"
    aside = folder.rename(folder.with_name("aside")) if folder.exists() else None
    folder.write_text("")
    cluster.fabric = None
    try:
        with pytest.warns(
            RuntimeWarning, match=r"not stored in .* \(Not a directory\): later clusters"
        ):
            measured = cluster.calibrate(seconds=1)
    finally:
        folder.unlink()
        if aside:
            aside.rename(folder)
    assert cluster.fabric == measured


def test_a_busy_fabric_is_named():
    """Repeated sweeps that disagree are reported, and still used."""
    fabric = replace(fit([1_000, 1_000_000], [100, 900], 2), disagreement=0.3)
    assert "the fabric or the cores were busy: repeated sweeps differ by 30%" in repr(fabric)
    assert fabric.reliable


@pytest.mark.parametrize(
    "given",
    [
        ([0, 1000], [1.0, 2.0], 2),
        ([-4, 1000], [1.0, 2.0], 2),
        ([4, 1000], [float("nan"), 2.0], 2),
        ([4, 1000], [1.0, 2.0], 1),
        ([4], [1.0], 2),
        ([4, 4], [1.0, 2.0], 2),
    ],
)
def test_what_cannot_be_fitted_is_refused(given):
    """No figure without meaning comes of it."""
    with pytest.raises(UsageError):
        fit(*given)


def test_a_fit_with_bends_predicts_sizes_that_were_left_out():
    """Latency up to 128 KB, then bandwidth: one line would miss both."""
    sizes = [1 << power for power in range(12, 25)]

    def us(size):
        return 1000 + max(0, size - (128 << 10)) * 0.01

    held_out = [(3 * size, us(3 * size)) for size in sizes[:-1]]
    fabric = fit(sizes, [us(size) for size in sizes], 2, held_out)
    assert fabric.held_out_error < 0.01
    assert fabric.busbw_gbps == pytest.approx(0.8, rel=0.01)
    assert fabric.predict_us(1 << 26) == pytest.approx(us(1 << 26), rel=0.01)
    assert fabric.predict_us(1 << 24, n=1) == 0
    with pytest.raises(UsageError, match="not a size"):
        fabric.predict_us(-1)


@pytest.mark.parametrize("times", [[100, 99], [100, 100], [100, 100.5]])
def test_times_that_do_not_grow_give_no_bandwidth(times):
    """Neither advice nor a figure uses one; the reason is in the fit's text."""
    fabric = fit([1000, 2000], times, 2)
    assert fabric.busbw_gbps == float("inf")
    assert not fabric.reliable
    assert fabric.caveat.startswith("no bandwidth: measure larger sizes")
    first = fabric.sentences[0]
    assert first.startswith("An allreduce on 2 ranks takes ")
    assert "unknown time per MB (no bandwidth: measure larger sizes)" in first
    assert fabric.predict_us(4000) == pytest.approx(100, rel=0.02)


def test_bends_are_between_different_sizes():
    """The largest size was measured several times: no line begins where it ends."""
    sizes = [1 << power for power in range(10, 16)]
    fabric = fit([*sizes, *[sizes[-1]] * 4], [*range(100, 161, 12), *[355] * 4], 2)
    assert len(set(fabric.knots_bytes)) == len(fabric.knots_bytes)
    assert fabric.predict_us(1 << 21) > fabric.predict_us(1 << 15)


CONTEXT = {"ranks": "2"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"devices": []},
        {"devices": {"vm1": [1]}},
        {"knots_bytes": [0, 10, 10], "knots_us": [1, 2, 3]},
        {"knots_us": [1]},
        {"knots_us": ["1", "2"]},
        {"sizes_bytes": [], "measured_us": []},
        {"held_out": [[1, 2]]},
        {"context": ["ranks"]},
        {"error": "small"},
        {"error": -1},
        {"n": 1},
        {"n": 2.5},
        {"knots_us": [900, 100]},
        {"knots_us": [-100, 900]},
        {"knots_us": [100, 1e308]},
        {"measured_us": [-1, 900]},
        {"sizes_bytes": [1000]},
        {"measured_at": 1e300},
    ],
)
def test_damaged_files_are_refused(tmp_path, wrong):
    """The error names the file, whatever is wrong in it."""
    fabric = replace(fit([1000, 1_000_000], [100, 900], 2, [(3000, 102)]), context=CONTEXT)
    path = stored.save(tmp_path, fabric)
    assert stored.find(tmp_path, CONTEXT) == fabric
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(UsageError, match=f"{path}: not a calibration"):
        stored.find(tmp_path, CONTEXT)


COPIES = {
    "host memory": [10.0, 11.0, 12.0],
    "GPU memory": [2_800.0, 2_900.0, 2_900.0],
    "PCIe": [54.0, 55.0, 56.0],
    "device to host": [50.0, 52.0, 54.0],
}


def test_one_rank_with_a_gpu_measures_copies(tmp_path):
    """It has no collectives; what is measured is shown with its spread, and stored."""
    measured = replace(calibration.measure(lambda *_: {0: COPIES}, 1, 1.0), context=CONTEXT)
    assert measured.devices == {
        "0": {"host memory": 11.0, "GPU memory": 2_900.0, "PCIe": 55.0, "device to host": 52.0}
    }
    assert measured.device_spreads["0"]["PCIe"] == pytest.approx(1 / 55)
    assert not measured.reliable
    assert measured.predict_us(1 << 20) == 0
    with pytest.raises(UsageError, match="no collectives"):
        measured.predict_us(1 << 20, n=2)
    shown = repr(measured)
    assert "a single rank has no collectives: only copies were measured" in shown
    assert "host to GPU 55.0 GB/s (± 2%), GPU to host 52.0 GB/s (± 4%)" in shown
    stored.save(tmp_path, measured)
    assert stored.find(tmp_path, CONTEXT) == measured


def test_copies_of_many_vms_are_one_sentence():
    """It names the slowest VM; a figure has the same place for many VMs as for one."""
    rates = {f"vm{number}": {"PCIe": 20.0 + number} for number in range(1, 40)}
    spreads = {vm: {"PCIe": 0.01} for vm in rates} | {"vm7": {"PCIe": 0.08}}
    fabric = replace(fit([1000, 1_000_000], [100, 900], 2), devices=rates, device_spreads=spreads)
    *_, last = fabric.sentences
    assert last == "Copies on 39 VMs: host to GPU 21.0 (vm1) to 59.0 GB/s (± 8%)."


def test_one_rank_without_a_gpu_cannot_be_calibrated(tmp_path):
    with pytest.raises(UsageError, match="on 1 rank without a GPU"):
        calibration.measure(lambda *_: {0: {"host memory": [10.0]}}, 1, 1.0)


def test_a_calibration_of_an_unknown_cluster_is_refused():
    with pytest.raises(UsageError, match="does not say of which cluster it is"):
        stored.check(fit([1000, 1_000_000], [100, 900], 2), CONTEXT)


def test_the_figure_has_the_sentences_only():
    """Without sizes that were held out, no line of the table is a note."""
    fabric = fit([1000, 1_000_000], [100, 900], 2)
    text = repr(calibration_figure(fabric)._values)
    assert text.endswith(fabric.sentences[0])
    assert "measured µs" not in text


def test_a_long_calibration_is_not_interrupted():
    """Its time limit follows from how long it may take."""
    assert calibration.limit_s(600) > 2 * 600
    assert matrix.limit_s(34) > 34 * 33 * 1.0
