"""Shows widgets that a cell creates in a rank; no page has their models.

An ``ipywidgets.Output`` is shown as a display of its contents, and the display is updated.
`rich` draws its progress bars in such a widget. Other widgets are shown as text, together with
their children that are an `Output`.
"""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, NamedTuple, Protocol

import comm
from comm.base_comm import BaseComm

from workbench.errors import COLOURS

_UPDATE_S = 0.5
"""Minimum time between two updates of a widget's contents."""
_MAX_CHARACTERS = 100_000
"""Number of characters that an `Output` keeps from the end of its text."""
_LEFT_OUT = "(Earlier output is left out.)\n"
_MODEL = "IPY_MODEL_"
"""Prefix of the id of a child in the state of a container."""
_BLANK = re.compile(r"\s*(<pre\b[^>]*>\s*</pre>\s*)?")
"""HTML that shows nothing."""
_IMAGES = ("image/png", "image/jpeg")


class Show(Protocol):
    """Sends a display; see `OutputChannel.show`."""

    def __call__(
        self, data: dict[str, Any], metadata: dict[str, Any], display_id: str, *, update: bool
    ) -> None:
        """Send a display, or an update of the display with this id."""


class _Piece(NamedTuple):
    """Text of one stream, or a display with its id."""

    data: dict[str, Any]
    is_text: bool = False
    display_id: str | None = None


class OutputArea:
    r"""The contents of an ``ipywidgets.Output``.

    Parameters
    ----------
    model_id
        The id of the widget's model.

    Attributes
    ----------
    display_id
        Id of the display that shows the widget.
    displayed
        Whether a cell has displayed the widget.
    shown
        Whether the current cell has a display of the widget.
    changed
        Whether the contents have changed since they were sent.
    sent_s
        Time when the contents were sent, in seconds of `time.monotonic`.

    Examples
    --------
    >>> area = OutputArea("1f")
    >>> area.write("epoch 1\n")
    >>> area.bundle()["text/plain"]
    'epoch 1'
    """

    def __init__(self, model_id: str) -> None:
        self.display_id = f"{_MODEL}{model_id}"
        self._pieces: list[_Piece] = []
        self._clears = False
        self.displayed = self.shown = self.changed = False
        self.sent_s = 0.0

    def write(self, text: str) -> None:
        """Add text of a stream."""
        self._begin_change()
        if self._pieces and self._pieces[-1].is_text:
            text = self._pieces.pop().data["text/plain"] + text
        if len(text) > 2 * _MAX_CHARACTERS:
            text = _LEFT_OUT + text[-_MAX_CHARACTERS:].partition("\n")[2]
        self._pieces.append(_Piece({"text/plain": text}, is_text=True))

    def display(self, data: dict[str, Any], display_id: str | None, *, update: bool) -> bool:
        """Add a display, or update the display of this id; return whether that is possible."""
        same = [index for index, piece in enumerate(self._pieces) if piece.display_id == display_id]
        if update and (display_id is None or not same):
            return False
        self._begin_change()
        piece = _Piece(data, display_id=display_id)
        if not update:
            self._pieces.append(piece)
            return True
        for index in same:
            self._pieces[index] = piece
        return True

    def clear(self, *, wait: bool) -> None:
        """Remove all contents; with `wait`, at the next addition."""
        self._clears = wait
        if not wait:
            self._pieces.clear()
            self.changed = True

    def replace(self, outputs: Any) -> None:
        """Replace the contents by `outputs`, in the form of the widget's attribute `outputs`."""
        self.clear(wait=False)
        for output in outputs:
            if output.get("output_type") == "stream":
                self.write(str(output.get("text", "")))
            elif output.get("output_type") == "error":
                self.write("\n".join(output.get("traceback", ())) + "\n")
            elif "data" in output:
                self.display(output["data"], None, update=False)

    def bundle(self) -> dict[str, Any]:
        """Return the contents as a MIME bundle, with text and HTML."""
        if len(self._pieces) == 1 and "text/html" in self._pieces[0].data:
            return self._pieces[0].data
        texts = [str(piece.data.get("text/plain", "")) for piece in self._pieces]
        ended = [text if text.endswith("\n") else f"{text}\n" for text in texts if text]
        return {
            "text/plain": "".join(ended).rstrip("\n"),
            "text/html": "".join(map(_html, self._pieces)),
        }

    def _begin_change(self) -> None:
        self.changed = True
        if self._clears:
            self._clears = False
            self._pieces.clear()


def is_blank(data: dict[str, Any]) -> bool:
    """Return whether a MIME bundle is only white space, as text and as HTML."""
    if set(data) != {"text/plain", "text/html"} or str(data["text/plain"]).strip():
        return False
    return _BLANK.fullmatch(str(data["text/html"])) is not None


def _html(piece: _Piece) -> str:
    """Return a piece as HTML."""
    if "text/html" in piece.data:
        return str(piece.data["text/html"])
    for kind in _IMAGES:
        if isinstance(image := piece.data.get(kind), str):
            return f'<img src="data:{kind};base64,{image.strip()}">'
    if "image/svg+xml" in piece.data:
        return str(piece.data["image/svg+xml"])
    plain = COLOURS.sub("", str(piece.data.get("text/plain", "")))
    return f"<pre>{html.escape(plain)}</pre>" if plain else ""


class OutputAreas:
    """The `Output` widgets of a rank: receives their contents and shows them.

    Parameters
    ----------
    show
        Sends a display.
    is_open
        Returns whether a cell runs, so that a display can be sent.
    """

    def __init__(self, show: Show, is_open: Callable[[], bool]) -> None:
        self._show = show
        self._is_open = is_open
        self._areas: dict[str, OutputArea] = {}
        self._children: dict[str, tuple[str, ...]] = {}
        """The children of each container, by their ids."""
        self._entered: dict[int, list[OutputArea]] = {}
        """The areas that each thread has entered, by the thread's number."""
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def install(self) -> None:
        """Connect new widgets to this object, because no page would receive their messages."""
        areas = self

        class RankComm(BaseComm):  # type: ignore[misc, unused-ignore]
            """The connection of a widget to this rank's areas."""

            def publish_msg(
                self, msg_type: str, data: dict[str, Any] | None = None, *_: Any, **__: Any
            ) -> None:
                """Receive a message to the page."""
                areas.receive(self.comm_id, msg_type, data or {})

        comm.create_comm = RankComm

    def current(self) -> OutputArea | None:
        """Return the area that this thread has entered last; None if it has entered none."""
        if not self._entered:  # nearly always
            return None
        entered = self._entered.get(threading.get_ident())
        return entered[-1] if entered else None

    def receive(self, model_id: str, kind: str, data: dict[str, Any]) -> None:
        """Handle a message of a widget, in its thread.

        Parameters
        ----------
        kind
            The type of the message, such as ``"comm_open"``.
        data
            Contains the widget's changed attributes as ``state``.
        """
        with self._lock:
            if kind == "comm_close":
                self._close(model_id)
                return
            state = data.get("state") or {}
            if kind == "comm_open" and state.get("_model_name") == "OutputModel":
                self._areas[model_id] = OutputArea(model_id)
            if "children" in state:
                ids = [str(child).removeprefix(_MODEL) for child in state["children"]]
                self._children[model_id] = tuple(ids)
            area = self._areas.get(model_id)
            if area is None:
                return
            if state.get("outputs") or (kind == "comm_msg" and "outputs" in state):
                area.replace(state["outputs"])
                self._send_later(area)
            if kind == "comm_msg" and "msg_id" in state:
                self._enter(area) if state["msg_id"] else self._leave(area)

    def display(self, model_id: str) -> bool:
        """Show the areas in a widget; return whether the widget itself is an area."""
        with self._lock:
            for area in list(self._within(model_id, set())):
                area.displayed = True
                self._send(area)
            return model_id in self._areas

    def write(self, area: OutputArea, text: str) -> None:
        """Add text to an area."""
        with self._lock:
            area.write(text)
            self._send_later(area)

    def add(
        self, area: OutputArea, data: dict[str, Any], display_id: str | None, *, update: bool
    ) -> bool:
        """Add or update a display in an area; return whether that is possible."""
        with self._lock:
            done = area.display(data, display_id, update=update)
            self._send_later(area)
            return done

    def clear(self, area: OutputArea, *, wait: bool) -> None:
        """Clear an area."""
        with self._lock:
            area.clear(wait=wait)
            self._send_later(area)

    def begin_cell(self) -> None:
        """Show later changes of earlier cells' widgets in the output of the next cell."""
        with self._lock:
            # an interrupt may have skipped the end of a `with` of the earlier cell
            self._entered.pop(threading.get_ident(), None)
            for area in self._areas.values():
                area.shown = False

    def flush(self) -> None:
        """Send all changed contents."""
        with self._lock:
            self._timer = None
            for area in list(self._areas.values()):
                self._send(area)

    def _close(self, model_id: str) -> None:
        area = self._areas.pop(model_id, None)
        self._children.pop(model_id, None)
        if area is not None:
            self._send(area)
            self._leave(area)

    def _enter(self, area: OutputArea) -> None:
        self._entered.setdefault(threading.get_ident(), []).append(area)

    def _leave(self, area: OutputArea) -> None:
        """Leave an area in all threads: a thread may end a block that another has entered."""
        for thread, entered in list(self._entered.items()):
            left = [other for other in entered if other is not area]
            if left:
                self._entered[thread] = left
            else:
                del self._entered[thread]

    def _within(self, model_id: str, seen: set[str]) -> Iterator[OutputArea]:
        """Yield the area of a widget and the areas of its children."""
        if model_id in seen:
            return
        seen.add(model_id)
        if model_id in self._areas:
            yield self._areas[model_id]
        for child in self._children.get(model_id, ()):
            yield from self._within(child, seen)

    def _send_later(self, area: OutputArea) -> None:
        """Send the contents of an area now, or later if they were sent just before."""
        if not (area.changed and area.displayed):
            return
        if monotonic() - area.sent_s >= _UPDATE_S:
            self._send(area)
        elif self._timer is None:
            self._timer = threading.Timer(_UPDATE_S, self.flush)
            self._timer.name = "workbench-widgets"
            self._timer.daemon = True
            self._timer.start()

    def _send(self, area: OutputArea) -> None:
        if not (area.changed and area.displayed and self._is_open()):
            return
        bundle = area.bundle()
        update = area.shown
        if not update and is_blank(bundle):
            return
        area.changed = False
        area.shown = True
        area.sent_s = monotonic()
        self._show(bundle, {}, area.display_id, update=update)
