"""The output of one cell, from all its ranks to a sink."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from workbench.output.differing_parts import RankIdentity
from workbench.output.final_order import OutputLog
from workbench.output.merger import MergedItem, OutputMerger
from workbench.output.shared_messages import SharedMessages
from workbench.output.sink import Sink, TextSink

_log = logging.getLogger(__name__)

_END = float("inf")
"""A time after all others: as `now`, no line waits any longer; as `until`, there is no limit."""
_RECENT_CHARACTERS = 1 << 18
"""Maximum number of characters of a running cell's text; the final text is kept separately."""


class CellOutput:
    """The merged output of a cell's ranks, as it arrives and in its final order.

    Parameters
    ----------
    ranks
        The ranks of the cell.
    sink
        The destination of the output.
    identities
        The identities of the ranks. They are needed to merge warnings and errors.

    Attributes
    ----------
    written
        Whether the last `write` has written everything that could be written.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        sink: Sink,
        identities: Mapping[int, RankIdentity] | None = None,
    ) -> None:
        self._ranks = ranks
        self._identities = (identities or {}) if len(ranks) > 1 else {}
        self._merger = OutputMerger(ranks, identities=self._identities)
        self._log = OutputLog(ranks, identities=self._identities)
        self._live = SharedMessages(self._identities)
        """The messages of the output in the order of arrival."""
        self._final = SharedMessages(self._identities)
        """The messages of the output in its final order."""
        self._text = TextSink()
        self._recent: TextSink | None = TextSink(max_characters=_RECENT_CHARACTERS)
        """The output that was shown so far; None after the end."""
        self._sink = sink
        self.written = True

    @property
    def text(self) -> str:
        """The merged text; in its final order after `finish`."""
        return self._text.text

    @property
    def recent_text(self) -> str:
        """The text that was shown so far; only its beginning and its end if it is long.

        Any thread may read it. After `finish`, it equals `text`.
        """
        recent = self._recent
        return self.text if recent is None else recent.text

    def add(self, rank: int, pieces: Iterable[tuple[str, int, str]], now: float) -> None:
        """Add output of a rank.

        Parameters
        ----------
        pieces
            Tuples of kind (the name of a stream, or ``"display"`` for a MIME bundle as JSON),
            number of completed iterations, and text.
        now
            Current time of `time.monotonic`, in seconds.
        """
        log = self._log.ranks[rank]
        for kind, iteration, text in pieces:
            if kind == "display":
                self._merger.display(rank, text, now)
                log.display(text, iteration)
            else:
                self._merger.text(rank, kind, text, now)
                log.text(kind, text, iteration)

    def end(self, rank: int, now: float) -> None:
        """Mark the end of a rank's output."""
        self._merger.end(rank, now)

    def note(self, text: str) -> None:
        """Show a note of the kernel after everything that the ranks have written so far."""
        self.write(_END)
        self._log.note(text)
        for sink in self._live_sinks():
            sink.note(text)

    def begin_prompt(self) -> None:
        """Show everything received so far, and place it before later output in the final order."""
        self.write(_END)
        self._order_rest()
        self._log = OutputLog(self._ranks, identities=self._identities)

    def end_prompt(self, text: str) -> None:
        """Add a prompt and its answer to the final order; the front end has already shown them."""
        self._log.note(text)
        if self._recent is not None:
            self._recent.note(text)

    def note_after_end(self, text: str) -> None:
        """Show a note of the kernel after the cell has ended."""
        self._sink.note(text)

    def write(self, now: float, until: float = _END) -> None:
        """Write the output that need not wait any longer at the time `now`.

        Stop after the time `until`. Both are times of `time.monotonic`, in seconds.
        """
        self.written = True
        for merged in self._merger.ready(now):
            self._put_live(self._live.fill(merged))
            if time.monotonic() > until:
                self.written = False
                break
        if self.written:
            self._put_live(self._live.end())
        self._sink.poll()
        while self.written and (output := self._log.advance()):
            self._order(output)
            self.written = time.monotonic() <= until

    def replace_sink(self) -> None:
        """Stop showing output, because the sink has raised an exception."""
        self._sink = TextSink()
        _log.info("the output of this cell is not shown any more: its sink has raised")

    def finish(self) -> None:
        """Write the remaining output and the final order."""
        started_s = time.monotonic()
        for rank in self._ranks:
            self._merger.end(rank, time.monotonic())
        self.write(_END)
        self._order_rest()
        for sink in (self._text, self._sink):
            sink.finish()
        self._recent = None
        duration_s = time.monotonic() - started_s
        _log.debug("ordered the output of %d ranks in %.3f s", len(self._ranks), duration_s)

    def _live_sinks(self) -> list[Sink]:
        return [self._sink] if self._recent is None else [self._recent, self._sink]

    def _put_live(self, output: Iterable[MergedItem]) -> None:
        sinks = self._live_sinks()
        for item in output:
            for sink in sinks:
                sink.put(item)

    def _order_rest(self) -> None:
        for output in self._log.rest():
            self._order(output)
            self._sink.poll()
        self._put_final(self._final.end())

    def _order(self, output: list[MergedItem]) -> None:
        self._put_final([item for merged in output for item in self._final.fill(merged)])

    def _put_final(self, output: list[MergedItem]) -> None:
        for sink in (self._text, self._sink):
            sink.put_final(output)
