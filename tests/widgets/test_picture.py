"""A notebook without a kernel keeps the picture, the tables, the figures."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from synthetic_source import SyntheticSource

from workbench.doctor import Finding
from workbench.errors import UsageError
from workbench.resources import Unknown, take_snapshot
from workbench.widgets.machine import FindingsView, ResourcesView, resources_view
from workbench.widgets.phases import EXPOSED, IN_STACK, IN_TIME, OVERLAPPED
from workbench.widgets.picture import draw_picture
from workbench.widgets.rank_figures import iteration_figure
from workbench.widgets.source import COLUMNS, RowWindow, TimingsReading
from workbench.widgets.svg import axis_end, round_up
from workbench.widgets.tables import collectives_table, summary_line, summary_table

SVG = "{http://www.w3.org/2000/svg}"


def reading(ranks: int = 2, iterations: int = 50, **more: object) -> TimingsReading:
    source = SyntheticSource(ranks, **more)
    source.step(iterations)
    source.end()
    return TimingsReading.take(source, 4096)


def drawn(shown: TimingsReading) -> ET.Element:
    """The picture, which must be XML to be read as SVG everywhere."""
    return ET.fromstring(draw_picture(shown, "abc"))


class TestPicture:
    def test_every_phase_is_in_it_with_its_darker_edge(self):
        """Phases keep their colour everywhere; overlapped communication is hatched."""
        painted = {(e.get("fill"), e.get("stroke")) for e in drawn(reading()).iter()}
        for phase in IN_TIME:
            assert (phase.color, phase.edge) in painted
        assert ("url(#overlap-abc)", OVERLAPPED.edge) in painted

    def test_exposed_communication_is_on_top(self):
        """Painted first of the stack, and so the one whose top stays in sight."""
        colors = [e.get("fill") for e in drawn(reading()).iter(f"{SVG}path")]
        stack = [color for color in colors if color in {p.color for p in IN_STACK}]
        assert stack[0] == EXPOSED.color

    def test_it_reads_on_white_and_on_dark(self):
        """All text is in the colour of what surrounds the picture."""
        texts = list(drawn(reading()).iter(f"{SVG}text"))
        assert len(texts) > 10
        assert {text.get("fill") for text in texts} == {"currentColor"}

    def test_it_says_how_the_run_ended(self):
        """The last state is described in words, also for those who cannot see it."""
        title = drawn(reading()).find(f"{SVG}title")
        assert title is not None
        assert "The run ended after 50 iterations." in (title.text or "")

    def test_its_size_does_not_grow_with_the_run(self):
        """Thousands of iterations are drawn as a few hundred columns."""
        assert len(draw_picture(reading(2, 2000), "a")) < 60_000

    def test_coordinates_stay_within_it(self):
        """A warm-up far beyond the axis is cut off, not drawn across the page."""
        for element in drawn(reading()).iter(f"{SVG}path"):
            found = re.findall(r"V(-?[0-9.]+)", element.get("d", ""))
            assert all(0 <= float(y) <= 384 for y in found)

    def test_the_calibrated_bandwidth_is_drawn_with_the_measured_one(self):
        """Nominal and calibrated each have a line of their own, and their figure in words."""
        shown = reading(nominal=10.0)
        summary = replace(shown.summary, calibrated_gbps=8.5)
        picture = drawn(replace(shown, summary=summary))
        dashes = {e.get("stroke-dasharray") for e in picture.iter(f"{SVG}line")}
        assert {"8 4", "12 3 2 3"} <= dashes
        words = " ".join("".join(text.itertext()) for text in picture.iter(f"{SVG}text"))
        assert "nominal 10 dashed" in words
        assert "calibrated 8.5 ± 5 % dash-dotted" in words

    def test_names_from_outside_are_text_not_markup(self):
        """A VM named like a tag does not become one."""
        shown = reading()
        places = tuple(replace(p, vm="<script>") for p in shown.status.ranks)
        status = replace(shown.status, ranks=places, message="<b>&")
        shown = replace(shown, status=status)
        assert "<script>" not in draw_picture(shown, "a") + summary_table(shown)
        assert drawn(shown) is not None

    def test_before_the_first_iteration_one_line_says_what_it_waits_for(self):
        """No empty axes."""
        shown = TimingsReading.take(SyntheticSource(2), 100)
        assert draw_picture(shown, "a") == f"<p>{summary_line(shown)}</p>"
        assert "Waiting for the first iteration" in summary_line(shown)

    def test_rows_that_miss_figures_are_drawn_all_the_same(self):
        """A rank without communication has no bandwidth; the rest is shown."""
        shown = reading()
        data = shown.window.data.copy()
        for name in ("algbw_gbps", "busbw_gbps", "wait_us", "overlapped_us"):
            data[COLUMNS.index(name)] = np.nan
        shown = replace(shown, window=RowWindow(100, data))
        assert drawn(shown) is not None
        assert "not recorded" in summary_table(shown)

    def test_axes_end_at_round_values_above_nearly_all(self):
        """One outlier does not flatten all other iterations."""
        steady = np.full(99, 20.0)
        assert axis_end(np.append(steady, 2000.0)) <= 30
        assert axis_end(np.array([np.nan])) == 1
        assert [round_up(17), round_up(0.21), round_up(0)] == [20, pytest.approx(0.25), 1]


class TestTable:
    def test_it_has_a_row_per_rank_and_one_for_all(self):
        """The means are those of the rows, without the first iteration, which a note says."""
        shown = reading()
        table = ET.fromstring(summary_table(shown))
        rows = [[cell.text for cell in row] for row in table.iter("tr")]
        assert [row[0] for row in rows] == ["rank", "0", "1", "all"]
        data = shown.window.data
        ms = data[COLUMNS.index("exposed_us"), data[0] > 0].mean() / 1e3
        assert rows[3][rows[0].index("exposed")] == f"{ms:,.2f}"
        assert "The first iteration is left out" in table.find("caption").text

    def test_of_many_ranks_it_says_how_many_are_left_out(self):
        """Never silently a part."""
        assert "48 more ranks not shown" in summary_table(reading(64, 3))

    def test_the_worst_collectives_are_in_it(self):
        """A saved notebook shows their names; a hostile name stays text."""
        shown = reading()
        first = replace(shown.details.collectives[0], name="<script>")
        shown = replace(shown, details=replace(shown.details, collectives=(first,)))
        table = ET.fromstring(collectives_table(shown))
        assert "<script>" in "".join(table.itertext())
        none = replace(shown.details, collectives=Unknown("none are held"))
        assert collectives_table(replace(shown, details=none)) == ""

    def test_an_unknown_keeps_its_reason_in_the_line(self):
        """Text has no hover: the reason is written there."""
        shown = reading()
        summary = replace(shown.summary, busbw_gbps=Unknown("no collective was timed"))
        assert "no collective was timed" in summary_line(replace(shown, summary=summary))


class TestFigure:
    def test_it_stacks_the_mean_phases_of_each_rank(self):
        """Bars add up to the iteration, and keep the phases' colours."""
        pd = pytest.importorskip("pandas")
        frame = pd.DataFrame(reading().window.data.T, columns=list(COLUMNS))
        figure = iteration_figure(frame.drop(columns="other_us"))
        assert [bar.marker.color for bar in figure.data] == [p.color for p in IN_TIME]
        mean = frame.groupby("rank")["iteration_us"].mean() / 1e3
        np.testing.assert_allclose(sum(bar.x for bar in figure.data), mean, rtol=1e-4)

    def test_no_rows_is_said(self):
        """An empty figure would suggest a run without cost."""
        pd = pytest.importorskip("pandas")
        with pytest.raises(UsageError, match="no iteration"):
            iteration_figure(pd.DataFrame())


class TestMachine:
    def test_this_machine_is_shown_with_reasons_for_what_is_unknown(self):
        """A value that cannot be read is a dash with the reason."""
        snapshot = take_snapshot()
        host = replace(snapshot.host, hypervisor=Unknown("no DMI in this container"))
        html = ResourcesView(replace(snapshot, host=host))._repr_html_()
        assert 'title="no DMI in this container"' in html
        assert f"{snapshot.host.hostname}" in html

    def test_without_gpus_it_says_why(self):
        """Tidy where there is none: the probe's reason."""
        snapshot = take_snapshot()
        probe = replace(snapshot.probes["gpus"], status="absent", reason="no NVIDIA driver")
        probes = {**snapshot.probes, "gpus": probe}
        bare = replace(snapshot, gpus=(), probes=probes)
        assert "No GPU: no NVIDIA driver" in resources_view(bare)._repr_html_()

    def test_findings_have_a_word_next_to_their_sign(self):
        """Severity is never shown by colour or sign alone; the fix is there."""
        finding = Finding("memlock", "warning", "this VM", "64 KiB", "slow", "ulimit -l", "man")
        html = FindingsView(take_snapshot(), [finding])._repr_html_()
        assert "warning" in html
        assert "ulimit -l" in html
