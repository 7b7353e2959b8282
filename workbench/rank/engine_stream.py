"""Standard output of a rank's engine outside its cells."""

from __future__ import annotations

from typing import Any

from ipykernel.iostream import OutStream


class EngineStream(OutStream):
    """Leaves the file descriptors alone, which lead to the rank's log.

    The agent shows the end of that log where the rank fails. ipykernel's own
    stream replaces the descriptors with a pipe, and what a library writes just
    before it aborts is lost with the thread that reads it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, watchfd=False, **options)
