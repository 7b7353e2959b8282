"""The sliders of ``%fabric whatif`` answer with a prediction."""

import math

import pyarrow as pa
import pytest
from IPython.core.interactiveshell import InteractiveShell
from recorded import RankClock, recorded
from recorded_training import Training

import workbench as wb
from workbench.advisor.measured_training import measure
from workbench.errors import UsageError
from workbench.fabric_magics import FabricMagics
from workbench.widgets.study.what_if_study import WhatIfStudy


@pytest.fixture
def study():
    return WhatIfStudy(measure(recorded(20)))


def test_it_begins_with_the_measured_iteration(study):
    """Before a slider moves, nothing is changed."""
    found = study.prediction
    assert str(found.changes) == "no change"
    assert found.predicted_us == pytest.approx(found.measured_us)


def test_a_moved_slider_changes_the_prediction_and_the_figure(study):
    """Each slider is one change of `what_if`; the figure follows at once."""
    before = study._figure.data[1].x
    study.controls["gbps"].value /= 8
    study.controls["ranks"].value = 8
    study.controls["compression"].value = True
    changes = study.prediction.changes
    assert (changes.ranks, changes.compression) == (8, "fp16")
    assert changes.gbps == pytest.approx(study.controls["gbps"].value)
    assert study._figure.data[1].x != before
    assert f"{study.prediction.predicted_us / 1e3:,.1f} ms not reliable" in study._text.value
    assert "This is no prediction" in study._text.value  # the replay of these records is off
    study.controls["cycle_time_ms"].value = 50.0
    study.controls["fusion_threshold_bytes"].value = 0
    assert study.prediction.changes.cycle_time_ms == 50.0


def test_positions_without_a_prediction_say_why():
    """Ranks that would all be on one VM, whose rate is unknown: the text says it, and recovers."""
    vms = {rank: f"vm{rank // 2}" for rank in range(4)}
    study = WhatIfStudy(measure(recorded(20, [RankClock()] * 4, vms=vms)))
    study.controls["ranks"].value = 2
    assert study.prediction is None
    assert "All ranks would be on one VM" in study._text.value
    assert "All ranks would be on one VM" in study._repr_mimebundle_()["text/html"]
    assert not any(trace.visible for trace in study._figure.data)
    study.controls["ranks"].value = 4
    assert study.prediction.ranks == 4
    assert all(trace.visible for trace in study._figure.data)


def test_a_page_without_a_kernel_shows_the_prediction(study):
    """A saved notebook has the figures as a table, not only a widget."""
    bundle = study._repr_mimebundle_()
    assert "<table>" in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle


@pytest.fixture
def run(tmp_path):
    """A run on disk."""
    training = Training(folder=tmp_path)
    training.train(20)
    training.close()
    return training.timings.path


def test_the_magic_opens_a_recorded_run(run):
    """``%fabric whatif NAME`` is the sliders of that run; a line that is wrong says so."""
    magics = FabricMagics(InteractiveShell())
    study = magics.fabric(f"whatif {run}")
    assert study.prediction == wb.what_if(wb.open_run(run))
    with pytest.raises(UsageError, match="--seconds and --stored are for calibrate"):
        magics.fabric("whatif --seconds 3")


@pytest.mark.filterwarnings("ignore:run")
def test_a_run_of_an_earlier_version_opens(run):
    """Columns that it lacks are unknown; what it has is simulated."""
    now = wb.what_if(wb.open_run(run))
    new = ["samples", "batch", "batches", "communication_cpu_ns", "messages_ns"]
    later = {
        "iterations": new,
        "collectives": new,
        "layouts": ["groups", "peers"],
    }
    for kind, columns in later.items():
        path = run / f"{kind}-0.arrows"
        table = pa.ipc.open_stream(path.read_bytes()).read_all().drop_columns(columns)
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)
    opened = wb.open_run(run)
    assert wb.what_if(opened).predicted_us == now.predicted_us
    progress = opened.summary().progress
    assert math.isnan(progress.epochs)
    assert math.isnan(progress.samples_per_s)
    assert progress.exposed_hours > 0
