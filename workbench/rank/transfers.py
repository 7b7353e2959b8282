"""Values that the kernel pushes to this rank, or pulls from it.

The kernel calls the methods that pickle and unpickle through ipyparallel, in the main thread.
The bytes travel over the rank's own connection. The thread of this connection never runs the
user's code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.rank.backends.neutral import neutral
from workbench.rank.interrupts import Interrupts
from workbench.wire import Message
from workbench.wire.transfer_messages import (
    Chunk,
    DropTransfer,
    GetChunk,
    MissingNames,
    PackedValues,
    PutChunk,
    UnpicklableValue,
)
from workbench.wire.values import Payload, dump, find_unpicklable, load, one_line, type_name

_MB = 1e6


class Transfers:
    """Handles one transfer at a time, identified by its number."""

    def __init__(self, shell: Any, send: Callable[[Message], None], interrupts: Interrupts) -> None:
        self._shell = shell
        self._send = send
        self._interrupts = interrupts
        self._number: int | None = None
        self._payload: Payload | None = None
        self._refusal = ""
        self._loaded: tuple[dict[str, Any], dict[str, Any]] = {}, {}

    # called in the main thread

    def pack(self, number: int, names: list[str]) -> PackedValues | MissingNames | UnpicklableValue:
        """Pickle the values of variables; return their sizes, or the reason for a failure."""
        self._drop()
        namespace = self._shell.user_ns
        missing = [name for name in names if name not in namespace]
        if missing:
            return MissingNames(tuple(missing))
        values = {name: namespace[name] for name in names}
        try:
            payload = self._interruptible(number, lambda: dump(values))
        except Exception:  # noqa: BLE001 - a user's class may raise anything
            return UnpicklableValue(*self._interruptible(number, lambda: find_unpicklable(values)))
        self._number = number
        self._payload = payload
        types = {name: type_name(value) for name, value in values.items()}
        return PackedValues(payload.sizes, types)

    def unpack(self, number: int, names: list[str]) -> str:
        """Unpickle the received values; return the reason for a failure, or an empty text."""
        payload = self._payload
        if number != self._number:
            return "the transfer was given up"
        if payload is None:
            return self._refusal or "the transfer was given up"
        try:
            self._loaded = self._interruptible(number, lambda: load(payload, names, shared=True))
        except Exception as error:  # noqa: BLE001 - a user's class may raise anything
            self._drop()
            return one_line(error)
        return ""

    def commit(self, number: int) -> None:
        """Set all names to the unpickled values."""
        if number == self._number:
            values, needed = self._loaded
            for name, value in needed.items():
                self._shell.user_ns.setdefault(name, value)
            self._shell.user_ns.update(values)
        self._drop()

    # called in the outbox's thread

    def receive(self, message: Message) -> bool:
        """Handle a message about a transfer; return whether the message is one."""
        match message:
            case PutChunk():
                if message.offset == 0 and message.transfer != self._number:
                    self._drop()
                    self._number = message.transfer
                    self._allocate(message.sizes)
                if message.transfer == self._number and (self._payload or self._refusal):
                    if self._payload is not None:
                        self._payload.write(message.offset, message.data)
                    self._send(Chunk(message.transfer, message.offset, ()))
            case GetChunk():
                if self._payload is not None and message.transfer == self._number:
                    pieces = self._payload.read(message.offset, message.size)
                    self._send(Chunk(message.transfer, message.offset, pieces))
            case DropTransfer():
                if message.transfer == self._number:
                    self._drop()
            case _:
                return False
        return True

    def _allocate(self, sizes: Sequence[int]) -> None:
        """Allocate memory for a push; without it, chunks are confirmed and `unpack` refuses."""
        try:
            self._payload = Payload.empty(sizes)
        except MemoryError:
            self._refusal = f"MemoryError: no {sum(sizes) / _MB:.0f} MB are free"

    def _drop(self) -> None:
        self._number = None
        self._payload = None
        self._loaded = ({}, {})
        self._refusal = ""

    def _interruptible(self, number: int, work: Callable[[], Any]) -> Any:
        """Call a function that may run the user's code."""
        try:
            with self._interrupts.cell_runs(number), self._interrupts.allowed(), neutral():
                return work()
        except KeyboardInterrupt:
            raise RuntimeError("it was interrupted") from None
