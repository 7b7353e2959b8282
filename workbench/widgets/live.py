"""The live view of training timings in a notebook."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from typing import Any

from IPython import get_ipython

from workbench.widgets.messages import (
    COMM_TARGET,
    MIME_TYPE,
    SAVED_ROWS,
    ViewMessage,
    answer,
    make_snapshot,
)
from workbench.widgets.picture import draw_picture
from workbench.widgets.preopened_comm import PreopenedComm, cell_parent
from workbench.widgets.source import TimingSource, TimingsReading
from workbench.widgets.stages import stages_table
from workbench.widgets.stream import Stream
from workbench.widgets.tables import collectives_table, summary_line, summary_table
from workbench.widgets.verdict import verdict_table

_log = logging.getLogger(__name__)

SAVE_EVERY_S = 10.0
"""How often the notebook's saved output is updated while a run is in progress."""

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class LiveView:
    """A view of timings that updates while a cell blocks the kernel.

    Show it as the last expression of a cell, or with ``display(view)``. JupyterLab with
    this package's extension draws the output itself and listens on the raw comm. Other
    front ends draw the widget. The output also contains a picture and a table, updated at
    the end of each cell, for saved, converted and reopened notebooks. After the end of a
    run, other front ends get the picture instead of the widget, because a widget saved
    without its kernel would show "Loading widget..." forever.

    Parameters
    ----------
    source
        The timings to show.
    """

    def __init__(self, source: TimingSource) -> None:
        self._source = source
        self._view_id = uuid.uuid4().hex
        self._stream: Stream | None = None
        self._widget: Any = None
        self._comm: PreopenedComm | None = None
        self._saved: tuple[int, str] | None = None
        """The last message's number and the run's state when the output was saved; None before."""
        self._saved_at = 0.0
        self._save_lock = threading.Lock()
        self._start_lock = threading.Lock()
        """A cell and a request of the panel may start or close the view at the same time."""

    def close(self) -> None:
        """Stop updating; the last state remains visible."""
        with self._start_lock:
            if self._stream is None:
                return
            with contextlib.suppress(ValueError):  # already done by a call that was interrupted
                get_ipython().events.unregister("post_run_cell", self._on_cell_end)
            self._stream.close()
            self._on_cell_end(None)
            self._stream = None
            _log.debug("live view %s: closed", self._view_id)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the current output in all its formats."""
        return self._bundle()

    def open_tab(self) -> dict[str, Any]:
        """Start updating without an output, and return the first snapshot for a tab."""
        self._start()
        return self._snapshot()

    def _ipython_display_(self) -> None:
        self._start()
        self._make_widget()
        shell = get_ipython()
        if shell is None:
            print(self._bundle()["text/plain"])  # noqa: T201  # plain Python shows text
            return
        key = self._saved_key()
        self._publish(self._bundle(), key, update=False)

    def _start(self) -> None:
        shell = get_ipython()
        if getattr(shell, "kernel", None) is None:
            return
        with self._start_lock:
            if self._stream is not None:
                return
            self._cell_parent = cell_parent(shell, shell.kernel)
            # Each page creates its own end of the comm, so that a page reloaded in the middle of a
            # cell receives messages as well.
            comm_id = f"timings-{self._view_id}"
            self._comm = PreopenedComm(shell.kernel, COMM_TARGET, comm_id, self._on_request)
            self._stream = Stream(self._source, self._send, self._save_periodically)
            self._stream.start()
            _log.debug("live view %s: started", self._view_id)
            shell.events.register("post_run_cell", self._on_cell_end)

    def _make_widget(self) -> None:
        with self._start_lock:
            if self._widget is not None or self._stream is None:
                return
            # Imported here because it loads the widget libraries.
            from workbench.widgets.anywidget_view import make_widget

            self._widget = make_widget(self._snapshot)
            self._widget.on_msg(self._on_widget_request)

    def _send(self, message: ViewMessage) -> None:
        self._send_to_page(message)
        if self._widget is not None:
            self._widget.send(message.content, buffers=message.buffers)

    def _send_to_page(self, message: ViewMessage) -> None:
        if self._comm is not None:
            # In the envelope of a widget's custom message, because nbclient interprets a
            # top-level "state" as the state of a widget.
            envelope = {"method": "custom", "content": message.content}
            self._comm.send(envelope, buffers=message.buffers)

    def _on_request(self, request: dict[str, Any]) -> None:
        """Answer a request of a page; runs on a subshell, so also in the middle of a cell."""
        self._cell_parent.restore()
        message = answer(self._source, request)
        if message is not None:
            self._send_to_page(message)

    def _on_widget_request(self, _: Any, request: dict[str, Any], __: Any) -> None:
        """Answer a widget; its front end decides whether the answer waits for the cell's end."""
        message = answer(self._source, request)
        if message is not None:
            self._widget.send(message.content, buffers=message.buffers)

    def _snapshot(self) -> dict[str, Any]:
        reading = TimingsReading.take(self._source, SAVED_ROWS)
        return make_snapshot(reading, self._view_id, self._seq)

    def _bundle(self) -> dict[str, Any]:
        reading = TimingsReading.take(self._source, SAVED_ROWS)
        picture = draw_picture(reading, self._view_id)
        bundle = {
            MIME_TYPE: make_snapshot(reading, self._view_id, self._seq),
            "text/html": f"{picture}{verdict_table(reading.status.verdict)}{summary_table(reading)}"
            f"{collectives_table(reading)}{stages_table(reading)}",
            "text/plain": summary_line(reading),
        }
        if self._widget is not None and reading.status.state != "ended":
            bundle[WIDGET_VIEW] = self._widget.get_view_spec()
        return bundle

    def _publish(self, bundle: dict[str, Any], key: tuple[int, str], *, update: bool) -> None:
        """Publish an output.

        `key` was read before the bundle was made. So rows that arrived in between make the output
        out of date, and the next call of `_save` saves them.
        """
        self._saved = key
        self._saved_at = time.monotonic()
        get_ipython().display_pub.publish(
            bundle, transient={"display_id": f"timings-{self._view_id}"}, update=update
        )

    def _saved_key(self) -> tuple[int, str]:
        return self._seq, self._source.status().state

    @property
    def _seq(self) -> int:
        return 0 if self._stream is None else self._stream.seq

    def _on_cell_end(self, _: Any) -> None:
        if self._stream is not None:
            self._stream.flush()
            self._save()

    def _save_periodically(self) -> None:
        if self._saved is None:  # only a tab shows the view, and tabs are not saved
            return
        state = self._source.status().state
        _, saved_state = self._saved
        # A run that resumes after an end gets its widget back immediately.
        state_changed = saved_state != state
        if state_changed or state == "ended":
            self._save()
        elif time.monotonic() - self._saved_at >= SAVE_EVERY_S:
            # Only a page that draws our MIME type processes this message. A new output
            # would replace the widget and lose the user's selections.
            self._saved_at = time.monotonic()
            self._save_in_page(self._bundle())

    def _save(self) -> None:
        """Update the notebook's output if it is out of date."""
        with self._save_lock:
            key = self._saved_key()
            if self._saved is None or self._saved == key:
                return
            bundle = self._bundle()
            self._publish(bundle, key, update=True)
        self._save_in_page(bundle)

    def _save_in_page(self, bundle: dict[str, Any]) -> None:
        # A reloaded page no longer knows the display id, but receives this message.
        self._send_to_page(ViewMessage({"type": "saved", "data": bundle}))
