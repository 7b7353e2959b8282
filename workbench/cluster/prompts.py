"""Asks the user of the notebook for what the ranks' cells want to read.

A front end accepts input only from the kernel's main thread, while it runs a cell. That thread
waits for the user, and another thread follows the ranks meanwhile.
"""

from __future__ import annotations

import builtins
import getpass
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from workbench.cluster.threads import in_background, uninterrupted
from workbench.output.cell_output import CellOutput
from workbench.ranks import capitalized, label, phrase
from workbench.wire import Message
from workbench.wire.prompt_messages import InputReply, InputRequest, PromptKind

_FOLLOW_S = 0.05
_SOON_S = 0.5
"""A rank that asks again within this time is asked before others that wait."""
AT: dict[PromptKind, str] = {
    "breakpoint": "at a breakpoint",
    "input": "at a prompt of input()",
    "password": "at a prompt of getpass()",
}
"""Where a rank is that waits for the user."""
_NO_INPUT = (
    "this front end accepts no input. Run the notebook in JupyterLab or in another front end "
    "with input, or remove the call."
)
_BACKGROUND = (
    "the cell runs in the background, where the notebook cannot ask. Run it without --noblock."
)
_STOPPED = "the cell is being stopped."
NO_CELL = "the cell has ended, or its kernel has. Run the cell again."
"""Why a request is refused that belongs to no cell that runs."""
_HIDDEN = "········"


def refuse(
    send: Callable[[int, Message], None], rank: int, request: InputRequest, why: str = NO_CELL
) -> None:
    """Answer a rank for which nobody can be asked: it would wait forever."""
    send(rank, InputReply(request.number, None, why))


class Prompts:
    """The input that the ranks of one cell wait for, in the order of its arrival.

    Parameters
    ----------
    send
        Sends a message to a rank.
    output
        Shows the prompts and answers with the cell's output.

    Attributes
    ----------
    report
        Called with a line about what the cell waits for; with an empty text when it goes on.
    """

    def __init__(self, send: Callable[[int, Message], None], output: CellOutput) -> None:
        self._send = send
        self._output = output
        self.report: Callable[[str], None] = lambda _: None
        self._requests: deque[tuple[int, InputRequest]] = deque()
        self._refusal = ""

    def take(self, rank: int, request: InputRequest) -> None:
        """Receive a request of a rank."""
        if self._refusal:
            refuse(self._send, rank, request, self._refusal)
        else:
            self._requests.append((rank, request))

    def stop(self) -> None:
        """Refuse all requests from now on, because the cell is being stopped."""
        self._refusal = _STOPPED
        while self._requests:
            self.take(*self._requests.popleft())

    def ask(
        self, follow: Callable[[int], bool], stopped: Callable[[], bool] = lambda: False
    ) -> float:
        """Ask the user for everything that the ranks wait for; return the seconds that it took.

        Parameters
        ----------
        follow
            Called again and again in another thread with the rank whose prompt is shown: follows
            the ranks, and returns False to end the prompt.
        stopped
            Whether the cell is to be stopped: then no other prompt is shown, and the requests
            are kept for `stop`.

        Raises
        ------
        KeyboardInterrupt
            The user has interrupted a prompt.
        """
        if not self._requests:
            return 0.0
        began = time.monotonic()
        try:
            while self._requests and not stopped():
                rank, request = self._requests.popleft()
                self._report(rank, request)
                self._output.begin_prompt()
                reply = self._ask(rank, request, follow)
                if reply is not None:
                    self._send(rank, reply)
                    self._prefer(rank, follow)
                elif stopped():
                    self._requests.appendleft((rank, request))
        finally:
            self.report("")
        return time.monotonic() - began

    def _prefer(self, rank: int, follow: Callable[[int], bool]) -> None:
        """Let a rank that asks again soon, as a debugger does, do so before the others."""
        until = time.monotonic() + _SOON_S
        while time.monotonic() < until and follow(rank):
            again = next((one for one in self._requests if one[0] == rank), None)
            if again is not None:
                self._requests.remove(again)
                self._requests.appendleft(again)
                break

    def _report(self, rank: int, request: InputRequest) -> None:
        at = {AT[one.kind] for _, one in self._requests} | {AT[request.kind]}
        ranks = sorted({rank, *(other for other, _ in self._requests)})
        text = " or ".join(sorted(at))
        self.report(capitalized(phrase(ranks, f"is {text}", f"are {text}")))

    def _ask(
        self, rank: int, request: InputRequest, follow: Callable[[int], bool]
    ) -> InputReply | None:
        """Return the user's answer; None if the rank no longer waits for it."""
        if threading.current_thread() is not threading.main_thread():
            return InputReply(request.number, None, _BACKGROUND)
        prompt = f"{label([rank])} {request.prompt}"
        hidden = request.kind == "password"
        read = getpass.getpass if hidden else builtins.input

        def answer() -> InputReply:
            try:
                return InputReply(request.number, read(prompt), "")
            except EOFError:
                return InputReply(request.number, None, "")
            except (RuntimeError, OSError):  # ipykernel's StdinNotImplementedError; no terminal
                return InputReply(request.number, None, _NO_INPUT)

        reply = _Attended(lambda: follow(rank)).call(answer)
        if reply is not None and reply.text is not None:
            self._output.end_prompt(f"{prompt}{_HIDDEN if hidden else reply.text}\n")
        return reply


class _Attended:
    """Calls what blocks the main thread, while another thread calls `follow` again and again.

    Where `follow` returns False, the call is interrupted as Ctrl-C would.
    """

    def __init__(self, follow: Callable[[], bool]) -> None:
        self._follow = follow
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._interrupted = False
        self._error: BaseException | None = None

    def call(self, read: Callable[[], InputReply]) -> InputReply | None:
        """Return what `read` returns, or None if `follow` has ended it.

        An exception of `follow` is raised.
        """
        attending: Future[None] | None = None
        reply: InputReply | None = None
        try:
            attending = in_background(self._attend)  # may interrupt before it is assigned
            reply = read()
            with self._lock:
                self._ended.set()
        except KeyboardInterrupt:
            if not self._interrupted:
                raise
        finally:
            self._ended.set()
            try:
                if attending is not None:
                    uninterrupted(attending.result)
            except KeyboardInterrupt:
                if not self._interrupted:
                    raise
        if self._error is not None:
            raise self._error
        return None if self._interrupted else reply

    def _attend(self) -> None:
        while not self._ended.wait(_FOLLOW_S):
            try:
                goes_on = self._follow()
            except BaseException as error:  # noqa: BLE001 - raised by `call`, such as of a sink
                self._error, goes_on = error, False
            if not goes_on:
                with self._lock:
                    if not self._ended.is_set():
                        self._interrupted = True
                        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return
