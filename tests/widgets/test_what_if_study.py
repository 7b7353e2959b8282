"""The sliders of ``%fabric whatif`` answer with a prediction."""

import pytest
from recorded import recorded

from workbench.advisor.measured_training import measure
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
    assert f"{study.prediction.predicted_us / 1e3:,.1f} ms predicted" in study._text.value
    study.controls["cycle_time_ms"].value = 50.0
    study.controls["fusion_threshold_bytes"].value = 0
    assert study.prediction.changes.cycle_time_ms == 50.0


def test_a_page_without_a_kernel_shows_the_prediction(study):
    """A saved notebook has the figures as a table, not only a widget."""
    bundle = study._repr_mimebundle_()
    assert "<table>" in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle
