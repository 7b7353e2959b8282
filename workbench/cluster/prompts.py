"""Ask the user of the notebook for the input of the ranks' cells.

A front end accepts input only from the kernel's main thread, while it runs a cell. That thread
waits for the user. At the same time, another thread follows the ranks.
"""

from __future__ import annotations

import builtins
import getpass
import logging
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

_log = logging.getLogger(__name__)

_FOLLOW_S = 0.05
_SOON_S = 0.5
"""If a rank asks again within this time, its prompt is shown before the prompts of others."""
PROMPT_LOCATIONS: dict[PromptKind, str] = {
    "breakpoint": "at a breakpoint",
    "input": "at a prompt of input()",
    "password": "at a prompt of getpass()",
}
"""Where a rank waits for the user, by the kind of its prompt."""
_NO_INPUT = (
    "this front end accepts no input. Run the notebook in JupyterLab or in another front end "
    "with input, or remove the call."
)
_BACKGROUND = (
    "the cell runs in the background, where the notebook cannot ask. Run it without --noblock."
)
_STOPPED = "the cell is being stopped."
NO_CELL = "the cell has ended, or its kernel has. Run the cell again."
"""Why a request is refused that belongs to no running cell."""
_HIDDEN = "········"


def refuse(
    send: Callable[[int, Message], None], rank: int, request: InputRequest, reason: str = NO_CELL
) -> None:
    """Refuse a request for input, because the rank would wait forever without an answer."""
    send(rank, InputReply(request.number, None, reason))
    _log.debug("refused the input that rank %d has requested: %s", rank, reason)


class CellPrompts:
    """The requests for input of one cell's ranks, in the order of their arrival.

    Parameters
    ----------
    send
        Sends a message to a rank.
    output
        Shows the prompts and answers with the cell's output.

    Attributes
    ----------
    report
        Called with a line that says which ranks wait for the user. Called with an empty text when
        the cell continues.
    """

    def __init__(self, send: Callable[[int, Message], None], output: CellOutput) -> None:
        self._send = send
        self._output = output
        self.report: Callable[[str], None] = lambda _: None
        self._requests: deque[tuple[int, InputRequest]] = deque()
        self._refusal = ""

    def add(self, rank: int, request: InputRequest) -> None:
        """Store a request of a rank, or refuse it if the cell is being stopped."""
        if self._refusal:
            refuse(self._send, rank, request, self._refusal)
        else:
            self._requests.append((rank, request))

    def stop(self) -> None:
        """Refuse all requests from now on, because the cell is being stopped."""
        self._refusal = _STOPPED
        while self._requests:
            self.add(*self._requests.popleft())

    def ask(
        self, follow: Callable[[int], bool], stopped: Callable[[], bool] = lambda: False
    ) -> float:
        """Ask the user for all requested input; return how many seconds it took.

        Parameters
        ----------
        follow
            Called repeatedly in another thread, with the rank that asks. It follows the ranks, and
            returns False to end the prompt.
        stopped
            Returns whether the cell is to be stopped. Then no other prompt is shown, and the
            requests are kept for `stop`.

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
        """Move the next request of a rank to the front, if it asks again soon like a debugger."""
        until = time.monotonic() + _SOON_S
        while time.monotonic() < until and follow(rank):
            again = next((request for request in self._requests if request[0] == rank), None)
            if again is not None:
                self._requests.remove(again)
                self._requests.appendleft(again)
                break

    def _report(self, rank: int, request: InputRequest) -> None:
        kinds = {request.kind, *(waiting.kind for _, waiting in self._requests)}
        ranks = sorted({rank, *(other for other, _ in self._requests)})
        text = " or ".join(sorted(PROMPT_LOCATIONS[kind] for kind in kinds))
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
            # ipykernel raises StdinNotImplementedError, which is a RuntimeError; without a
            # terminal, input() raises an OSError
            except (RuntimeError, OSError):
                return InputReply(request.number, None, _NO_INPUT)

        _log.debug("rank %d asks for %s", rank, request.kind)
        reply = _SupervisedRead(lambda: follow(rank)).call(answer)
        if reply is not None and reply.text is not None:
            self._output.end_prompt(f"{prompt}{_HIDDEN if hidden else reply.text}\n")
        return reply


class _SupervisedRead:
    """Reads input in the main thread, while another thread calls `follow` repeatedly.

    If `follow` returns False, the call is interrupted as Ctrl-C would do.
    """

    def __init__(self, follow: Callable[[], bool]) -> None:
        self._follow = follow
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._interrupted = False
        self._error: BaseException | None = None

    def call(self, read: Callable[[], InputReply]) -> InputReply | None:
        """Return the result of `read`, or None if `follow` has ended it.

        An exception of `follow` is raised.
        """
        supervision: Future[None] | None = None
        reply: InputReply | None = None
        try:
            supervision = in_background(self._supervise)  # may interrupt before the assignment
            reply = read()
            with self._lock:
                self._ended.set()
        except KeyboardInterrupt:
            if not self._interrupted:
                raise
        finally:
            self._ended.set()
            try:
                if supervision is not None:
                    uninterrupted(supervision.result)
            except KeyboardInterrupt:
                if not self._interrupted:
                    raise
        if self._error is not None:
            raise self._error
        return None if self._interrupted else reply

    def _supervise(self) -> None:
        while not self._ended.wait(_FOLLOW_S):
            try:
                continues = self._follow()
            except BaseException as error:  # noqa: BLE001 - `call` raises it, such as a sink's error
                self._error = error
                continues = False
            if not continues:
                with self._lock:
                    if not self._ended.is_set():
                        self._interrupted = True
                        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return
