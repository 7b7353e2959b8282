"""Values that the kernel pushes to this rank, or pulls from it.

The main thread pickles and unpickles, in calls of the kernel's; the bytes
travel over the control channel, whose thread runs none of the user's code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.rank.interrupts import Interrupts
from workbench.wire import Message
from workbench.wire.values import Payload, dump, load, one_line, type_name, unsendable


class Transfers:
    """Handles one transfer at a time, by its number.

    Parameters
    ----------
    shell
        The engine's IPython shell, whose namespace is read and written.
    send
        Sends a message to the kernel.
    interrupts
        Lets the kernel interrupt the pickling as it interrupts a cell.
    """

    def __init__(self, shell: Any, send: Callable[[Message], None], interrupts: Interrupts) -> None:
        self._shell = shell
        self._send = send
        self._interrupts = interrupts
        self._number: int | None = None
        self._payload: Payload | None = None
        self._loaded: tuple[dict[str, Any], dict[str, Any]] = {}, {}

    # called by the kernel, in the main thread

    def pack(self, number: int, names: list[str]) -> dict[str, Any]:
        """Prepare names for `receive` to send, and return the sizes of the bytes, or why not."""
        self._drop()
        namespace = self._shell.user_ns
        missing = [name for name in names if name not in namespace]
        if missing:
            return {"missing": missing}
        values = {name: namespace[name] for name in names}
        try:
            payload = self._interruptible(number, lambda: dump(values))
        except Exception:  # noqa: BLE001 - a user's class may raise anything
            return {"unsendable": self._interruptible(number, lambda: unsendable(values))}
        self._number, self._payload = number, payload
        types = {name: type_name(value) for name, value in values.items()}
        return {"sizes": payload.sizes, "types": types}

    def unpack(self, number: int, names: list[str]) -> str:
        """Read the values that have arrived; return why that is not possible, or an empty text."""
        payload = self._payload
        if payload is None or number != self._number:
            return "the transfer was given up"
        try:
            self._loaded = self._interruptible(number, lambda: load(payload, names))
        except Exception as error:  # noqa: BLE001 - a user's class may raise anything
            self._drop()
            return one_line(error)
        return ""

    def commit(self, number: int) -> None:
        """Set all names at once to the values that were read."""
        if number == self._number:
            values, needed = self._loaded
            for name, value in needed.items():
                self._shell.user_ns.setdefault(name, value)
            self._shell.user_ns.update(values)
        self._drop()

    # called in the control channel's thread

    def receive(self, message: Message) -> bool:
        """Take a message of a transfer; return whether it was one."""
        content = message.content
        if message.kind == "put":
            if content["offset"] == 0 and content["number"] != self._number:
                self._drop()
                self._number, self._payload = content["number"], Payload.empty(content["sizes"])
            if self._payload is not None and content["number"] == self._number:
                self._payload.write(content["offset"], message.payload)
                self._answer(content, ())
        elif message.kind == "get":
            if self._payload is not None and content["number"] == self._number:
                pieces = self._payload.read(content["offset"], content["size"])
                self._answer(content, pieces)
        elif message.kind == "drop":
            if content["number"] == self._number:
                self._drop()
        else:
            return False
        return True

    def _answer(self, content: dict[str, Any], pieces: tuple[bytes, ...]) -> None:
        answer = {"number": content["number"], "offset": content["offset"]}
        self._send(Message("chunk", answer, pieces))

    def _drop(self) -> None:
        self._number, self._payload, self._loaded = None, None, ({}, {})

    def _interruptible(self, number: int, work: Callable[[], Any]) -> Any:
        """Do what may run the user's code."""
        try:
            with self._interrupts.cell_runs(number), self._interrupts.allowed():
                return work()
        except KeyboardInterrupt:
            raise RuntimeError("it was interrupted") from None
