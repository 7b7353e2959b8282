"""Two scaling studies compared, and how notebooks show them."""

import dataclasses
import re

import pytest

import workbench as wb
from workbench.advisor.scaling_point import FailedSize, ScalingPoint
from workbench.advisor.scaling_record import ScalingStudy
from workbench.widgets.fabric_view import comparison_view
from workbench.widgets.scaling_figures import comparison_html, study_figure, study_html


def study(label, times_ms, *, spread=0.02, batch=32, **fields):
    """A study with these times by the number of ranks, each in an interval of ± `spread`."""
    first = next(iter(times_ms.values()))
    points = tuple(
        ScalingPoint(
            ranks, 40, ms * 1e3, ms * (1 - spread) * 1e3, ms * (1 + spread) * 1e3, 0.0, first / ms,
            nominal=(0.9, 1.0), calibrated=(0.8, 0.95), samples=batch * ranks,
            gradient_bytes=4_000_000, tensors=8,
        )
        for ranks, ms in times_ms.items()
    )  # fmt: skip
    return ScalingStudy(label, points, ("Gloo: TCP eth0",), ("vm1", "vm2"), **fields)


BARE = study("bare", {1: 20.0, 2: 22.0, 4: 25.0})
VM = study("VM", {1: 20.2, 2: 24.2, 4: 30.0})


def test_the_virtualization_tax():
    """The share of the throughput that VMs lose, at each size, with its spread."""
    alone, two, four = BARE.compare(VM).sizes
    assert two.ratio == pytest.approx(1.1)
    assert two.loss.value == pytest.approx(1 - 22 / 24.2)
    assert two.loss.low < two.loss.value < two.loss.high
    assert four.loss.value == pytest.approx(1 / 6)
    assert [one.clear for one in (alone, two, four)] == [False, True, True]
    text = repr(BARE.compare(VM))
    assert "1 rank: an iteration of VM takes 1.010 times" in text
    assert "no difference beyond the noise" in text.splitlines()[0]
    assert "VM loses 16.7% of the throughput (" in text
    frame = BARE.compare(VM).to_frame()
    assert list(frame["loss"]) == [one.loss.value for one in (alone, two, four)]


def test_the_interval_of_a_ratio():
    """Of two medians with ± 2 % each: about ± 2.8 %, not ± 4 %; the reverse is its inverse."""
    two, reverse = BARE.compare(VM).sizes[1], VM.compare(BARE).sizes[1]
    assert two.low == pytest.approx(1.1 * 0.972, rel=1e-3)
    assert two.high == pytest.approx(1.1 * 1.029, rel=1e-3)
    inverse = (1 / two.ratio, 1 / two.high, 1 / two.low)
    assert (reverse.ratio, reverse.low, reverse.high) == pytest.approx(inverse)
    assert "the throughput of bare is 10.0% higher" in repr(VM.compare(BARE))


def test_a_study_does_not_differ_from_itself():
    """Nor from one within the noise."""
    assert not any(one.clear for one in BARE.compare(BARE).sizes)
    assert BARE.compare(BARE).differences == ()
    assert "do not have what changes between runs" in repr(BARE.compare(BARE))
    often = [dataclasses.replace(one, runs=3) for one in BARE.points]
    repeated = dataclasses.replace(BARE, points=tuple(often))
    assert "between runs" not in repr(repeated.compare(repeated))


def test_unequal_studies():
    """Another batch is refused; other gradients, sizes, and an unknown batch are named."""
    with pytest.raises(wb.UsageError, match="has 32 samples in bare and 64 in twice, so"):
        BARE.compare(study("twice", {1: 20.0}, batch=64))
    with pytest.raises(wb.UsageError, match=r"'vm\.json': not a scaling study"):
        BARE.compare("vm.json")
    with pytest.raises(wb.UsageError, match="no number of ranks in common"):
        BARE.compare(study("large", {8: 20.0}))
    other = study("fp16", {2: 22.0, 8: 40.0})
    halved = [dataclasses.replace(one, gradient_bytes=2_000_000) for one in other.points]
    found = BARE.compare(dataclasses.replace(other, points=tuple(halved))).differences
    assert found[:2] == ("Only bare has ranks = 1, 4.", "Only fp16 has ranks = 8.")
    assert "4,000,000 in bare and 2,000,000 in fp16" in found[2]
    unknown = [dataclasses.replace(one, samples=None) for one in VM.points]
    assert "The batch of one study is unknown" in repr(
        BARE.compare(dataclasses.replace(VM, points=tuple(unknown)))
    )


def test_both_batches_change():
    """Neither weak nor strong; a rounded batch is strong."""
    points = zip(BARE.points, (60, 50, 40), strict=True)
    mixed = [dataclasses.replace(one, samples=samples) for one, samples in points]
    assert dataclasses.replace(BARE, points=tuple(mixed)).scaling == "mixed"
    points = zip(BARE.points, (63, 62, 60), strict=True)
    rounded = [dataclasses.replace(one, samples=samples) for one, samples in points]
    assert dataclasses.replace(BARE, points=tuple(rounded)).scaling == "strong"
    assert study("one", {2: 20.0}).scaling == "unknown"


def test_the_figure_has_three_bars_for_each_size():
    """Measured, calibrated and nominal, for each study and size above the smallest."""
    figure = study_figure(BARE, VM)
    ends = {
        name: [base + x for bar in figure.data if bar.name == name and bar.showlegend is not False
               for base, x in zip(bar.base, bar.x, strict=True)]
        for name in ("measured", "calibrated", "nominal")
    }  # fmt: skip
    above = [one for pair in zip(BARE.points[1:], VM.points[1:], strict=True) for one in pair]
    assert ends["measured"] == pytest.approx([100 * one.efficiency for one in above])
    assert ends["calibrated"] == pytest.approx([80] * 4)
    assert ends["nominal"] == pytest.approx([90] * 4)
    assert list(figure.layout.yaxis.ticktext) == [
        "2 ranks, bare", "2 ranks, VM", "4 ranks, bare", "4 ranks, VM"
    ]  # fmt: skip
    assert len(study_figure(study("one", {2: 20.0})).layout.yaxis.ticktext) == 1
    with pytest.raises(wb.UsageError, match="no study given"):
        study_figure()


def test_what_is_unknown_has_no_bar():
    """It is unknown in the table, with its reason below."""
    points = [dataclasses.replace(one, nominal=None, calibrated=None) for one in VM.points]
    failed = (FailedSize(8, "rank 7: OutOfMemoryError: <3 GiB"),)
    made = ScalingStudy("VM", tuple(points), failed=failed, notes=("No link between VMs.",))
    assert {bar.name for bar in study_figure(made).data} == {"measured", "95 % interval"}
    page = re.sub(r"<[^>]*>", " ", study_html(made))
    for words in ("unknown", "rank 7: OutOfMemoryError: &lt;3 GiB", "No link between VMs."):
        assert words in page
    assert "transport unknown" in page
    assert "NaN" not in page


def test_files_are_compared(tmp_path):
    """As `%fabric compare` does it, with the sentences next to the picture."""
    BARE.save(tmp_path / "bare.json")
    VM.save(tmp_path / "vm.json")
    page = comparison_html(comparison_view(tmp_path / "bare.json", tmp_path / "vm.json"))
    assert "<svg" in page
    for sentence in BARE.compare(VM).sentences:
        assert sentence in page
    with pytest.raises(wb.UsageError, match="none"):
        comparison_view(tmp_path / "bare.json", tmp_path / "none")
    with pytest.raises(wb.UsageError, match="cannot be written"):
        BARE.save(tmp_path)
