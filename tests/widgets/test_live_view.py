"""The live view in a real kernel: what it sends, what it leaves in the notebook."""

from __future__ import annotations

import base64
import queue
import time
from pathlib import Path

import numpy as np
import pytest
from kernels import start_kernel
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook
from synthetic_source import SyntheticSource

from workbench.widgets.messages import MAX_ROWS, MIME_TYPE, Composer
from workbench.widgets.source import COLUMNS

SUPPORT = Path(__file__).parents[1] / "support"
SHOW = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
from synthetic_source import SyntheticSource
from workbench.widgets import LiveView
source = SyntheticSource(2)
view = LiveView(source)
view
"""
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

needs_static = pytest.mark.skipif(
    not (SUPPORT.parents[1] / "workbench/widgets/static/live.js").exists(),
    reason="the front end is not built here: `make test` builds it",
)


class Notebook:
    """A kernel and all that it published, in order."""

    def __init__(self) -> None:
        self._manager, self._client = start_kernel(kernel_name="python3")

    def run(self, code: str) -> list[dict]:
        """Run a cell; everything published until it is idle."""
        asked = self._client.execute(code)
        seen: list[dict] = []
        while True:
            message = self._client.get_iopub_msg(timeout=60)
            seen.append(message)
            ours = message["parent_header"].get("msg_id") == asked
            if ours and message["msg_type"] == "error":
                raise AssertionError("\n".join(message["content"]["traceback"]))
            if ours and message["content"].get("execution_state") == "idle":
                return seen

    def drain(self, seconds: float) -> list[dict]:
        """Everything published in the next seconds, with no cell running."""
        seen, stop = [], time.monotonic() + seconds
        while (left := stop - time.monotonic()) > 0:
            try:
                seen.append(self._client.get_iopub_msg(timeout=left))
            except queue.Empty:
                break
        return seen

    def ask(self, comm_id: str, data: dict) -> list[dict]:
        """Send a message on a comm, as a page does; everything published until it is handled."""
        content = {"comm_id": comm_id, "data": data}
        message = self._client.session.msg("comm_msg", content)
        self._client.shell_channel.send(message)
        seen: list[dict] = []
        while True:
            seen.append(self._client.get_iopub_msg(timeout=60))
            ours = seen[-1]["parent_header"].get("msg_id") == message["header"]["msg_id"]
            if ours and seen[-1]["content"].get("execution_state") == "idle":
                return seen

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def trained():
    """Two cells: one shows the view, one trains for three seconds in the kernel."""
    notebook = Notebook()
    try:
        shown = notebook.run(SHOW)
        trained = notebook.run("source.train(3.0)")
        yield notebook, shown, trained
    finally:
        notebook.close()


def bundles(messages: list[dict]) -> list[dict]:
    """The MIME bundles displayed or updated, in order."""
    kinds = ("display_data", "update_display_data")
    return [m["content"]["data"] for m in messages if m["msg_type"] in kinds]


def stream(messages: list[dict]) -> list[dict]:
    """The messages on the view's raw comm, each with its rows as an array."""
    found = []
    for message in messages:
        comm_id = message["content"].get("comm_id", "")
        if message["msg_type"] != "comm_msg" or not comm_id.startswith("timings-"):
            continue
        content = message["content"]["data"]["content"]
        if message["buffers"]:
            data = np.frombuffer(bytes(message["buffers"][0]), dtype="<f4")
            content = {**content, "data": data.reshape(len(COLUMNS), content["rows"])}
        found.append({**content, "published": message["header"]["date"]})
    return found


@needs_static
class TestInAKernel:
    def test_the_output_carries_every_form(self, trained):
        """Our MIME for JupyterLab, a widget for others, HTML and text for the rest."""
        [bundle] = bundles(trained[1])[:1]
        assert set(bundle) == {MIME_TYPE, WIDGET_VIEW, "text/html", "text/plain"}
        assert bundle[MIME_TYPE]["state"] == "waiting"
        assert "Waiting for the first iteration" in bundle["text/plain"]

    def test_no_comm_is_opened_for_the_stream(self, trained):
        """The page makes its end itself; an opened comm would be lost by a reload."""
        opened = [m["content"]["target_name"] for m in trained[1] if m["msg_type"] == "comm_open"]
        assert "workbench.timings" not in opened
        assert "jupyter.widget" in opened

    def test_rows_arrive_while_the_cell_blocks_the_kernel(self, trained):
        """Between the cell's start and its end come deltas and complete windows."""
        kinds = [message["type"] for message in stream(trained[2])]
        assert kinds.count("delta") >= 5
        assert kinds.count("window") >= 2

    def test_sequence_numbers_have_no_gap(self, trained):
        """A page can detect that it missed a message."""
        numbers = [m["seq"] for m in stream(trained[2]) if m["type"] != "saved"]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))

    def test_the_last_window_has_the_complete_run_and_says_so(self, trained):
        """After the end, the view has every iteration, even if deltas were lost."""
        windows = [m for m in stream(trained[2]) if m["type"] == "window"]
        last = windows[-1]
        assert last["state"] == "ended"
        iterations = last["data"][0]
        assert iterations[0] == 0
        assert len(iterations) == 2 * (iterations[-1] + 1)
        assert f"{int(iterations[-1]) + 1:,} iterations" in last["message"]

    def test_rows_add_up_and_arrive_unchanged(self, trained):
        """Column-major float32: the phases of each row add up to its iteration."""
        data = next(m for m in stream(trained[2]) if m["type"] == "delta")["data"]
        rows = dict(zip(COLUMNS, data, strict=True))
        phases = ("data", "copy", "forward", "backward", "exposed", "optimizer", "other")
        total = sum(rows[f"{phase}_us"] for phase in phases)
        np.testing.assert_allclose(total, rows["iteration_us"], rtol=1e-5)

    def test_the_widget_hears_the_same(self, trained):
        """Front ends without our extension get each message as a custom message."""
        sent = [m for m in trained[2] if m["msg_type"] == "comm_msg"]
        raw = [m for m in sent if m["content"]["comm_id"].startswith("timings-")]
        widget = [m for m in sent if not m["content"]["comm_id"].startswith("timings-")]
        custom = [m["content"]["data"]["content"]["seq"] for m in widget]
        assert custom == [m["seq"] for m in stream(raw) if m["type"] != "saved"]

    def test_the_saved_output_is_brought_up_to_date_at_the_end(self, trained):
        """The notebook keeps the last state: snapshot, picture, table, no dead widget."""
        last = bundles(trained[2])[-1]
        assert last[MIME_TYPE]["state"] == "ended"
        assert WIDGET_VIEW not in last
        assert "<svg" in last["text/html"]
        assert "<table" in last["text/html"]
        raw = base64.b64decode(last[MIME_TYPE]["window"]["data"])
        assert len(raw) == 4 * len(COLUMNS) * last[MIME_TYPE]["window"]["rows"] > 0

    def test_a_reloaded_page_gets_the_saved_output_by_the_comm(self, trained):
        """If the display's id is lost, the same bundle comes on the comm."""
        saved = [m for m in stream(trained[2]) if m["type"] == "saved"]
        assert saved[-1]["data"] == bundles(trained[2])[-1]

    def test_a_page_is_answered_on_the_comm(self, trained):
        """The cost of a selection comes with the selection, and does not count as a cell."""
        notebook = trained[0]
        comm_id = f"timings-{bundles(trained[1])[0][MIME_TYPE]['view_id']}"
        asked = {"type": "details", "first": 5, "last": 9}
        seen = notebook.ask(comm_id, asked) + notebook.drain(0.3)
        [answer] = [m for m in stream(seen) if m["type"] == "answer"]
        assert answer["asked"] == asked
        assert answer["details"]["summary"]["iteration"] == 9
        assert bundles(seen) == []

    def test_an_update_belongs_to_the_cell_that_ran(self, trained):
        """An update of another cell is dropped by nbclient."""
        updates = [m for m in trained[2] if m["msg_type"] == "update_display_data"]
        ask = next(m for m in trained[2] if m["msg_type"] == "execute_input")
        assert updates[-1]["parent_header"]["msg_id"] == ask["parent_header"]["msg_id"]

    def test_a_view_shown_twice_sends_once_and_updates_both(self, trained):
        """The outputs share one stream and one display id."""
        notebook = trained[0]
        seen = notebook.run("third = LiveView(source); display(third); display(third)")
        shown = [m for m in seen if m["msg_type"] == "display_data"]
        ids = {m["content"]["transient"]["display_id"] for m in shown}
        assert (len(shown), len(ids)) == (2, 1)
        seen = notebook.run("source.train(0.5)")
        mine = [m for m in seen if m["content"].get("comm_id") in ids]
        numbers = [m["seq"] for m in stream(mine) if m["type"] != "saved"]
        assert len(numbers) == len(set(numbers)) > 1
        notebook.run("third.close()")

    def test_a_run_that_goes_on_gets_its_widget_back(self, trained):
        """After an end the output is a picture; with new iterations it is live again."""
        notebook = trained[0]
        notebook.run("source.train(0.2)")  # ends, whatever came before
        notebook.drain(0.5)
        seen = notebook.run("source.train(1.0)")
        live = [WIDGET_VIEW in bundle for bundle in bundles(seen)]
        assert True in live
        assert live[-1] is False

    def test_a_closed_view_is_silent(self, trained):
        """After `close` nothing is sent, whatever the source does."""
        notebook = trained[0]
        shown = notebook.run("second = LiveView(source); display(second)")
        [view_id] = {
            m["content"]["data"][MIME_TYPE]["view_id"]
            for m in shown
            if m["msg_type"] == "display_data"
        }

        def sent(messages):
            ours = [m for m in messages if m["content"].get("comm_id") == f"timings-{view_id}"]
            return stream(ours)

        assert sent(notebook.run("source.step(3)") + notebook.drain(0.5))
        notebook.run("second.close()")
        notebook.drain(0.5)
        assert sent(notebook.run("source.step(3)") + notebook.drain(0.5)) == []


CLUSTERS = """
import threading
import workbench as wb
from workbench.widgets.views import timings_view

counts = []
for _ in range(3):
    with wb.Cluster(n=1) as cluster:
        display(timings_view(cluster, "live"))
        threads = [thread.name for thread in threading.enumerate()]
        counts.append(threads.count("workbench-live"))
assert counts == [1, 1, 1], counts
"""


@pytest.mark.slow
def test_views_of_stopped_clusters_are_closed():
    """A notebook that starts one cluster after another has one view's thread, not one for each."""
    notebook = Notebook()
    try:
        shown = notebook.run(CLUSTERS)
    finally:
        notebook.close()
    assert len({bundle[MIME_TYPE]["view_id"] for bundle in bundles(shown)}) == 3


@needs_static
def test_a_converted_notebook_shows_the_last_state(tmp_path):
    """Converted by nbconvert it shows picture and table, though nothing of a widget runs there."""
    notebook = new_notebook(cells=[new_code_cell(SHOW), new_code_cell("source.train(0.6)")])
    NotebookClient(notebook, kernel_name="python3", iopub_timeout=300).execute()
    html, _ = HTMLExporter().from_notebook_node(notebook)
    assert "<svg" in html
    assert "The run ended after" in html
    assert "waiting for the others" in html
    assert WIDGET_VIEW not in notebook.cells[0].outputs[-1].data


class TestComposer:
    def test_nothing_new_sends_nothing(self):
        """A source without changes sends nothing."""
        composer = Composer(SyntheticSource(2))
        assert composer.next(0.0).content["type"] == "state"
        assert composer.next(1.0) is None

    def test_only_news_between_windows(self):
        """A delta has the rows since the message before, and no other."""
        source = SyntheticSource(2)
        composer = Composer(source)
        source.step(10)
        assert composer.next(0.0).content["type"] == "window"
        source.step(3)
        delta = composer.next(0.2)
        assert (delta.content["type"], delta.content["rows"]) == ("delta", 6)
        source.step(1)
        assert composer.next(1.1).content["type"] == "window"

    def test_a_new_run_begins_with_all_of_its_rows(self):
        """Rows of the run before are not taken for rows already sent."""
        source = SyntheticSource(2)
        composer = Composer(source)
        source.step(10)
        composer.next(0.0)
        source.begin()
        source.step(4)
        message = composer.next(0.1)
        assert (message.content["run"], message.content["rows"]) == (1, 8)

    def test_an_end_is_reported_once(self):
        """The final window comes once, then silence."""
        source = SyntheticSource(2)
        composer = Composer(source)
        source.step(10)
        composer.next(0.0)
        source.end()
        final = composer.next(0.1)
        assert (final.content["state"], final.content["rows"]) == ("ended", 20)
        assert composer.next(5.0) is None

    def test_a_run_goes_on_after_an_end(self):
        """Another training cell on the same ranks: news again, and a second end."""
        source = SyntheticSource(2)
        composer = Composer(source)
        source.step(10)
        composer.next(0.0)
        source.end()
        composer.next(0.1)
        source.step(2)
        more = composer.next(0.2)
        assert (more.content["state"], more.content["rows"]) == ("running", 4)
        source.end()
        assert composer.next(0.3).content["rows"] == 24

    def test_a_burst_is_cut_to_what_the_server_lets_through(self):
        """More rows than fit become one window of the newest."""
        source = SyntheticSource(16)
        composer = Composer(source)
        composer.next(0.0)
        source.step(600)
        message = composer.next(0.1)
        assert message.content["type"] == "window"
        assert message.content["rows"] <= MAX_ROWS

    def test_an_unknown_keeps_its_reason(self):
        """An unknown value is never sent as zero or null."""
        message = Composer(SyntheticSource(2)).next(0.0)
        reason = {"unknown": "no iteration has arrived yet"}
        assert message.content["summary"]["busbw_gbps"] == reason
