"""The kernel's side of the backends: each joins the ranks of a cluster in a ring.

- `connection_owner`: checks that a connection does not come from another user of this machine
- `ddp`: a process group of torch.distributed
- `horovod`: a Horovod ring

To add a backend, add a module here with a subclass of `KernelBackend` and an entry in
`CLASS_NAMES`, and a module in `workbench.rank.backends` with an entry in the table there.
"""

from __future__ import annotations

import importlib
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from re import Pattern
from typing import Any, ClassVar, Protocol

from workbench.errors import RankError, StartFailed
from workbench.wire import Message
from workbench.wire.rank_messages import AbortInit, RingCheck
from workbench.wire.transport import Transport

_log = logging.getLogger(__name__)

CLASS_NAMES = {"horovod": "KernelHorovodBackend", "ddp": "KernelDDPBackend"}
"""The class of each backend, by the name of the backend and of its module."""
RING_NOT_FORMED = "RingNotFormed"
"""The class name of `workbench.rank.backends.backend.RingNotFormed`, which ranks raise."""

_MAX_TRIES = 3
_MAX_RETRY_S = 20.0
"""After this time since the first try, no further try begins."""
_PATIENCE_S = 3.0
"""An interrupt aborts the forming of a ring only after this time, which usually suffices."""
_STEPS = {  # by the name of a function of `workbench.rank.session`
    "hello": "start",
    "join": "take its place",
    "init_ring": "join the ring",
    "shutdown_ring": "leave the ring",
}


def backend_class(name: str) -> type[KernelBackend]:
    """Import and return the class of a backend.

    Examples
    --------
    >>> backend_class("ddp").library
    'torch.distributed'
    """
    module = importlib.import_module(f"{__name__}.{name}")
    backend: type[KernelBackend] = getattr(module, CLASS_NAMES[name])
    return backend


def step_of(name: str) -> str:
    """Describe what a function of `workbench.rank.session` does, for an error message.

    Examples
    --------
    >>> step_of("init_ring")
    'join the ring'
    """
    return _STEPS.get(name, name)


def tensorflow_configs(settings: list[dict[str, str]]) -> list[dict[str, str]]:
    """Remove the key TENSORFLOW from the settings of each rank, and return TF_CONFIG by rank.

    ``tf.distribute.MultiWorkerMirroredStrategy`` reads TF_CONFIG; worker 0 is the chief.

    Parameters
    ----------
    settings
        The settings of each rank. The value of TENSORFLOW is the address at which the rank's
        TensorFlow listens.

    Returns
    -------
    list of dict
        The environment variables to add in each rank; empty unless all ranks have TensorFlow.

    Examples
    --------
    >>> tensorflow_configs([{"TENSORFLOW": "10.0.0.1:4000"}])[0]["TF_CONFIG"]
    '{"cluster": {"worker": ["10.0.0.1:4000"]}, "task": {"type": "worker", "index": 0}}'
    >>> tensorflow_configs([{"TENSORFLOW": "10.0.0.1:4000"}, {}])
    [{}, {}]
    """
    workers = [rank_settings.pop("TENSORFLOW", "") for rank_settings in settings]
    if not all(workers):
        return [{} for _ in workers]
    return [
        {
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
            )
        }
        for rank in range(len(workers))
    ]


class CallFailed(StartFailed):
    """A function of `workbench.rank.session` raised an exception on a rank that still runs.

    Attributes
    ----------
    kind
        The class name of the exception.
    """

    def __init__(self, name: str, error: BaseException, who: str) -> None:
        self.kind = str(getattr(error, "ename", type(error).__name__))
        message = getattr(error, "evalue", error)
        super().__init__(f"{who} failed to {step_of(name)}: {self.kind}: {message}")


class Ranks(Protocol):
    """The interface through which a backend uses the ranks; `Engines` implements it."""

    @property
    def address(self) -> str:
        """The address of this machine that the VMs can reach."""

    @property
    def places(self) -> list[tuple[int, str]]:
        """The VM number and the network interface of the collectives of each rank, by rank.

        Ranks of the same VM are consecutive. The interface is empty if the VM is lost.
        """

    def call(
        self,
        name: str,
        arguments: list[tuple[Any, ...]] | None = None,
        *,
        ranks: list[int] | None = None,
        **options: Any,
    ) -> list[Any]:
        """Call a function of `workbench.rank.session` on several ranks concurrently.

        Parameters
        ----------
        name
            The name of the function.
        arguments
            The positional arguments of each call; None for calls without arguments.
        ranks
            The ranks to call; None for all.
        options
            Keyword arguments, which all calls share.

        Returns
        -------
        list
            The result of each rank.

        Raises
        ------
        StartFailed
            The function raised on a rank (`CallFailed`), or a rank has ended.
        """

    def send(self, rank: int, message: Message) -> None:
        """Send a message to a rank, which receives it even while its main thread is blocked."""


class KernelBackend(ABC):
    """Joins ranks in a ring: the process group that runs their collectives.

    Only one thread at a time may form the ring or shut it down. The other methods are safe to
    call from any thread at any time.

    Parameters
    ----------
    ranks
        The ranks of the cluster. They may change between two rings.

    Attributes
    ----------
    library
        The name of the library that messages show.
    module_name
        The name of the library's module in cells; empty if cells have no such name.
    lost_peer
        Matches the message of an error if a rank has lost its connection to another rank.
    uneven_fix
        Advice for a cell that calls a collective more often on some ranks than on others.
    wait_limit
        A sentence about how long a rank may wait in a collective; empty if it waits forever.
    ring_broken
        Whether the ranks are in no ring, because it could not be formed.
    transports
        The transports of each rank's collectives, as the rank reported them last.
    controller
        What connects the ranks, if the library has a choice: ``"MPI"`` or ``"Gloo"``; or empty.
        Ranks that MPI connects can only be replaced all at once.
    """

    library: ClassVar[str]
    module_name: ClassVar[str]
    lost_peer: ClassVar[Pattern[str]]
    uneven_fix: ClassVar[str]
    wait_limit: ClassVar[str] = ""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._ring = ""
        """Identifies the newest ring that this kernel has formed or tried to form."""
        self._began: float | None = None
        self._interrupted = False
        self.ring_broken = False
        self.transports: dict[int, tuple[Transport, ...]] = {}
        self.controller = ""

    def init_ring(self, report: Callable[[str], None] = lambda _: None) -> None:
        """Join all ranks in a ring, and try again if they fail to connect.

        Parameters
        ----------
        report
            Called with one line before each further try.

        Raises
        ------
        StartFailed
            A rank has ended, the user has interrupted the start, or the last try has failed.
        """
        self.ring_broken = True
        self._interrupted = False
        began = self._began = time.monotonic()
        try:
            for number in range(2, _MAX_TRIES + 2):
                try:
                    self._init_once()
                    break
                except CallFailed as error:
                    if self._interrupted:
                        raise StartFailed("the forming of the ring was interrupted") from error
                    give_up = number > _MAX_TRIES or time.monotonic() - began > _MAX_RETRY_S
                    if give_up or error.kind != RING_NOT_FORMED:
                        raise
                    report(f"try {number} of {_MAX_TRIES}, after {error.cause}")
                    _log.info("Forming the ring again, try %d: %s", number, error.cause)
                    # The other ranks may still wait in the failed try, or may have joined it.
                    self._ranks.call("shutdown_ring", peer_lost=True)
        finally:
            self._began = None
        self.ring_broken = False
        _log.info(
            "%s: joined %d ranks in %.2f s",
            self.library,
            len(self.transports),
            time.monotonic() - began,
        )

    def _check_joined(self, checks: list[RingCheck]) -> None:
        """Check the result of the ring's first collective, and store each rank's transports."""
        sums = [check.total for check in checks]
        if any(total != len(sums) for total in sums):
            raise StartFailed(f"the ring's first sum over {len(sums)} ranks was {sums}")
        self.transports = {rank: check.transports for rank, check in enumerate(checks)}

    def shutdown_ring(self, ranks: list[int] | None = None, *, peer_lost: bool = False) -> None:
        """Make ranks leave the ring. If a rank fails to leave, release the ranks that wait for it.

        Parameters
        ----------
        ranks
            The ranks that still answer; None for all.
        peer_lost
            Whether a rank was lost, so that the others must not wait for it.

        Raises
        ------
        StartFailed
            A rank did not leave.
        """
        peer_lost = peer_lost or self.ring_broken
        self.ring_broken = True
        _log.debug("Shutting the ring down (ranks %s, peer lost: %s)", ranks or "all", peer_lost)
        try:
            self._ranks.call("shutdown_ring", ranks=ranks, peer_lost=peer_lost)
        except BaseException:
            self.abort_init()
            raise

    def interrupt_init(self) -> None:
        """Make `init_ring` fail in the thread that runs it, unless it has only just begun."""
        began = self._began
        if began is not None and time.monotonic() - began > _PATIENCE_S:
            self._interrupted = True
            _log.info("Aborting the ring: interrupted after %.1f s", time.monotonic() - began)
            self.abort_init()
            self.close_rendezvous()

    def abort_init(self) -> None:
        """Abort the wait of ranks for others that join or leave the ring; variables are kept."""
        for rank in range(len(self._ranks.places)):
            self._ranks.send(rank, AbortInit(self._ring))

    def abort_earlier_init(self) -> None:
        """Abort the wait of ranks in a ring that an earlier kernel began to form."""
        self.abort_init()

    @staticmethod
    @abstractmethod
    def import_failure(text: str, vm: str) -> StartFailed | None:
        """Return the error of a start if a VM cannot import the library; None for other causes.

        Parameters
        ----------
        text
            The error message of the import of the ranks' modules.
        vm
            The name of the VM.
        """

    @staticmethod
    @abstractmethod
    def explain_numbers(numbers: str) -> str:
        """Explain why ranks wait for each other in unnamed collectives, and what to do.

        Parameters
        ----------
        numbers
            How many unnamed collectives each rank has started, as text.
        """

    @staticmethod
    @abstractmethod
    def is_peer_error(error: RankError) -> bool:
        """Return whether a rank's error only reports that the ring ended because another failed."""

    @abstractmethod
    def _init_once(self) -> None:
        """Set `_ring`, join all ranks in it, and check the result of their first collective.

        Raises
        ------
        StartFailed
            The ring was not formed.
        """

    @abstractmethod
    def serve_init(self, rank: int) -> None:
        """Send the rendezvous address to a rank, because its cell initializes the backend."""

    @abstractmethod
    def close_rendezvous(self) -> None:
        """Make the initialization fail in ranks that still wait for another rank's address."""
