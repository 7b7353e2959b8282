"""The live view of a training's timings, in a notebook."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

from IPython import get_ipython

from workbench.widgets.joinedcomm import JoinedComm, cell_parent
from workbench.widgets.messages import (
    COMM_TARGET,
    MIME_TYPE,
    SAVED_ROWS,
    Message,
    answer,
    make_snapshot,
)
from workbench.widgets.picture import draw_picture
from workbench.widgets.source import Reading, TimingSource
from workbench.widgets.stream import Stream
from workbench.widgets.tables import collectives_table, summary_line, summary_table

SAVE_EVERY_S = 10.0
"""While a run goes on the notebook's output is brought up to date this often."""

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class LiveView:
    """Timings that move while a cell blocks the kernel.

    Show it by making it the last expression of a cell, or by ``display(view)``.
    JupyterLab with this package's extension draws the output itself and hears
    the raw comm; other front ends draw the widget. The output carries a picture
    and a table as well, and is brought up to date at the end of each cell, for
    the notebook as it is saved, converted and reopened. After the end of a run
    other front ends get that picture in the widget's place: a widget saved
    without its kernel would say "Loading widget..." for ever.

    Parameters
    ----------
    source
        What to show; see `workbench.widgets.source.TimingSource`.
    """

    def __init__(self, source: TimingSource) -> None:
        self._source = source
        self._view_id = uuid.uuid4().hex
        self._stream: Stream | None = None
        self._widget: Any = None
        self._comm: JoinedComm | None = None
        self._saved: tuple[int, str] | None = None
        self._saved_at = 0.0
        self._save_lock = threading.Lock()

    def close(self) -> None:
        """Stop sending and stand still; what is shown stays."""
        if self._stream is None:
            return
        get_ipython().events.unregister("post_run_cell", self._on_cell_end)
        self._stream.close()
        self._stream = None

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """The output in all its forms, as of now."""
        return self._bundle()

    def _ipython_display_(self) -> None:
        self._start()
        shell = get_ipython()
        if shell is None:
            print(self._bundle()["text/plain"])  # noqa: T201  # plain Python shows text
            return
        self._publish(self._bundle(), update=False)

    def _start(self) -> None:
        shell = get_ipython()
        if self._stream is not None or getattr(shell, "kernel", None) is None:
            return
        # It loads widgets' libraries: not before a view is shown.
        from workbench.widgets.anywidget_door import make_widget

        self._widget = make_widget(self._snapshot)
        self._widget.on_msg(self._on_widget)
        self._cell = cell_parent(shell, shell.kernel)
        # The page makes its end by itself, so that a page that was reloaded in
        # mid-cell hears this as well.
        comm_id = f"timings-{self._view_id}"
        self._comm = JoinedComm(shell.kernel, COMM_TARGET, comm_id, self._on_request)
        self._stream = Stream(self._source, self._send, self._save_now_and_then)
        self._stream.start()
        shell.events.register("post_run_cell", self._on_cell_end)

    def _send(self, message: Message) -> None:
        self._send_to_page(message)
        if self._widget is not None:
            self._widget.send(message.content, buffers=message.buffers)

    def _send_to_page(self, message: Message) -> None:
        if self._comm is not None:
            # The envelope of a widget's custom message, on the raw comm as well:
            # nbclient takes a top-level "state" for a widget's state.
            envelope = {"method": "custom", "content": message.content}
            self._comm.send(envelope, buffers=message.buffers)

    def _on_request(self, request: dict[str, Any]) -> None:
        """A page that has joined the comm asks, on a subshell: in mid-cell as well."""
        self._cell.restore()
        message = answer(self._source, request)
        if message is not None:
            self._send_to_page(message)

    def _on_widget(self, _: Any, request: dict[str, Any], __: Any) -> None:
        """A widget asks; its front end decides whether that waits for the cell's end."""
        message = answer(self._source, request)
        if message is not None:
            self._widget.send(message.content, buffers=message.buffers)

    def _snapshot(self) -> dict[str, Any]:
        reading = Reading.take(self._source, SAVED_ROWS)
        return make_snapshot(reading, self._view_id, self._seq)

    def _bundle(self) -> dict[str, Any]:
        reading = Reading.take(self._source, SAVED_ROWS)
        picture = draw_picture(reading, self._view_id)
        bundle = {
            MIME_TYPE: make_snapshot(reading, self._view_id, self._seq),
            "text/html": f"{picture}{summary_table(reading)}{collectives_table(reading)}",
            "text/plain": summary_line(reading),
        }
        if self._widget is not None and reading.status.state != "ended":
            bundle[WIDGET_VIEW] = self._widget.get_view_spec()
        return bundle

    def _publish(self, bundle: dict[str, Any], *, update: bool) -> None:
        self._saved = self._now()
        self._saved_at = time.monotonic()
        get_ipython().display_pub.publish(
            bundle, transient={"display_id": f"timings-{self._view_id}"}, update=update
        )

    def _now(self) -> tuple[int, str]:
        return self._seq, self._source.status().state

    @property
    def _seq(self) -> int:
        return 0 if self._stream is None else self._stream.seq

    def _on_cell_end(self, _: Any) -> None:
        if self._stream is not None:
            self._stream.flush()
            self._save()

    def _save_now_and_then(self) -> None:
        state = self._source.status().state
        # A run that goes on after an end gets its widget back at once.
        turned = self._saved is not None and self._saved[1] != state
        if turned or state == "ended":
            self._save()
        elif time.monotonic() - self._saved_at >= SAVE_EVERY_S:
            # Only the page that draws our MIME type takes this. A new output would
            # take a widget away, and what its user has set with it.
            self._saved_at = time.monotonic()
            self._save_in_page(self._bundle())

    def _save(self) -> None:
        """Bring the notebook's output up to date, where it is not."""
        with self._save_lock:
            if self._saved == self._now():
                return
            bundle = self._bundle()
            self._publish(bundle, update=True)
        self._save_in_page(bundle)

    def _save_in_page(self, bundle: dict[str, Any]) -> None:
        # A page that was reloaded has lost the display's id; it takes this.
        self._send_to_page(Message({"type": "saved", "data": bundle}))
