"""Backends, the kernel's side: each joins the ranks of a cluster in a ring.

- `ddp`: a process group of torch.distributed
- `horovod`: a Horovod ring
- `own_peers`: refuses connections of other users of this machine

A new backend needs a module here with a subclass of `Backend`, one in `workbench.rank.backends`,
and an entry in the table there.
"""

from __future__ import annotations

import importlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from re import Pattern
from typing import Any, ClassVar, Protocol

from workbench.errors import RankError, StartFailed
from workbench.rank.backends import BACKENDS
from workbench.wire import Message
from workbench.wire.rank_messages import AbortInit, RingCheck
from workbench.wire.transport import Transport

RING_NOT_FORMED = "RingNotFormed"
"""The name of `workbench.rank.backends.backend.RingNotFormed`, the error of a rank."""

_TRIES = 3
_RETRY_S = 20.0
"""A ring that could not be formed within this time is not tried again."""
_PATIENCE_S = 3.0
"""Forming a ring is usually quick: the user's interrupt ends it only after this time."""
_STEPS = {
    "hello": "start",
    "join": "take its place",
    "init_ring": "join the ring",
    "shutdown_ring": "leave the ring",
}


def backend_class(name: str) -> type[Backend]:
    """Import and return the class of a backend."""
    module = importlib.import_module(f"{__name__}.{name}")
    found: type[Backend] = getattr(module, BACKENDS[name])
    return found


def step_of(name: str) -> str:
    """Return what a function of `workbench.rank.session` does, in the words of an error."""
    return _STEPS.get(name, name)


def tensorflow_configs(settings: list[dict[str, str]]) -> list[dict[str, str]]:
    """Take the address of each rank's TensorFlow out of its settings; return its TF_CONFIG.

    ``tf.distribute.MultiWorkerMirroredStrategy`` reads it; worker 0 is the chief. Each is empty
    unless all ranks have TensorFlow.
    """
    workers = [one.pop("TENSORFLOW", "") for one in settings]
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
    """A function of `workbench.rank.session` raised on a rank, whose process goes on.

    Attributes
    ----------
    kind
        The name of the exception's class.
    """

    def __init__(self, name: str, error: BaseException, who: str) -> None:
        self.kind = str(getattr(error, "ename", type(error).__name__))
        why = getattr(error, "evalue", error)
        super().__init__(f"{who} failed to {step_of(name)}: {self.kind}: {why}")


class Ranks(Protocol):
    """The ranks of a cluster, as a backend uses them; implemented by `Engines`."""

    @property
    def address(self) -> str:
        """The address of this machine, as the VMs see it."""

    @property
    def places(self) -> list[tuple[int, str]]:
        """The number of each rank's VM, and the network interface of its collectives, by rank.

        Ranks of one VM are next to each other; the interface of a lost VM is empty.
        """

    def call(
        self,
        name: str,
        arguments: list[tuple[Any, ...]] | None = None,
        *,
        ranks: list[int] | None = None,
        **options: Any,
    ) -> list[Any]:
        """Call a function of `workbench.rank.session` on ranks at once; return the results.

        Parameters
        ----------
        arguments
            The arguments of each call; None for none.
        ranks
            None for all.

        Raises
        ------
        StartFailed
            It raised on a rank (`CallFailed`), or a rank has ended.
        """

    def send(self, rank: int, message: Message) -> None:
        """Send a message to a rank, which receives it even while its main thread is blocked."""


class Backend(ABC):
    """Joins ranks in a ring: the process group in which their collectives run.

    Only one thread at a time may form the ring or shut it down. The other methods may be
    called meanwhile, from any thread.

    Parameters
    ----------
    ranks
        The ranks of the cluster, which may change between two rings.

    Attributes
    ----------
    library
        The name of its library, as users read it.
    module_name
        The name under which cells have its module; empty for none.
    lost_peer
        Matches the text of an error if a rank has lost its connection to another.
    uneven_cure
        What to do where some ranks call a collective more often than others.
    wait_limit
        For how long a rank may wait in a collective; empty for any time.
    ring_broken
        Whether the ranks are in no ring, because it could not be formed.
    transports
        How the collectives of each rank are carried, as its libraries last reported it.
    controller
        What connects the ranks, if the library has a choice: ``"MPI"`` or ``"Gloo"``; or empty.
        Ranks that MPI connects can only be replaced all at once.
    """

    library: ClassVar[str]
    module_name: ClassVar[str]
    lost_peer: ClassVar[Pattern[str]]
    uneven_cure: ClassVar[str]
    wait_limit: ClassVar[str] = ""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._ring = ""
        """The name of the newest ring that this kernel has formed or tried to form."""
        self._began: float | None = None
        self._interrupted = False
        self.ring_broken = False
        self.transports: dict[int, tuple[Transport, ...]] = {}
        self.controller = ""

    def init_ring(self, report: Callable[[str], None] = lambda _: None) -> None:
        """Join all ranks in a ring. Where they fail to connect, try again.

        Parameters
        ----------
        report
            Called with one line before each further try.

        Raises
        ------
        StartFailed
            A rank has ended, the user has interrupted, or the last try has failed.
        """
        self.ring_broken, self._interrupted = True, False
        began = self._began = time.monotonic()
        try:
            for number in range(2, _TRIES + 2):
                try:
                    self._init_once()
                    break
                except CallFailed as error:
                    if self._interrupted:
                        raise StartFailed("the forming of the ring was interrupted") from error
                    late = number > _TRIES or time.monotonic() - began > _RETRY_S
                    if late or error.kind != RING_NOT_FORMED:
                        raise
                    report(f"try {number} of {_TRIES}, after {error.cause}")
                    # the other ranks may still wait in this try, or may have joined it
                    self._ranks.call("shutdown_ring", peer_lost=True)
        finally:
            self._began = None
        self.ring_broken = False

    def _check_joined(self, checks: list[RingCheck]) -> None:
        """Check the first collective of the ring, and keep how it was carried."""
        sums = [check.total for check in checks]
        if any(total != len(sums) for total in sums):
            raise StartFailed(f"the ring's first sum over {len(sums)} ranks was {sums}")
        self.transports = {rank: check.transports for rank, check in enumerate(checks)}

    def shutdown_ring(self, ranks: list[int] | None = None, *, peer_lost: bool = False) -> None:
        """Make ranks leave the ring. Where one fails to, the others stop waiting for it.

        Parameters
        ----------
        ranks
            Those that still answer; None for all.
        peer_lost
            Whether a rank is gone, for which the others must not wait.

        Raises
        ------
        StartFailed
            A rank did not leave.
        """
        peer_lost, self.ring_broken = peer_lost or self.ring_broken, True
        try:
            self._ranks.call("shutdown_ring", ranks=ranks, peer_lost=peer_lost)
        except BaseException:
            self.abort_init()
            raise

    def interrupt_init(self) -> None:
        """Make `init_ring`, which runs in another thread, fail if it takes long."""
        began = self._began
        if began is not None and time.monotonic() - began > _PATIENCE_S:
            self._interrupted = True
            self.abort_init()
            self.close_rendezvous()

    def abort_init(self) -> None:
        """Make ranks that wait for others to join or leave the ring give up; keep variables."""
        for rank in range(len(self._ranks.places)):
            self._ranks.send(rank, AbortInit(self._ring))

    def abort_earlier_init(self) -> None:
        """Do as `abort_init` does for ranks that wait for an earlier kernel."""
        self.abort_init()

    @staticmethod
    @abstractmethod
    def import_failure(text: str, vm: str) -> StartFailed | None:
        """Return the error of a start if a VM cannot import the library; None if it can.

        Parameters
        ----------
        text
            The error of the import of all that ranks need.
        vm
            The name of the VM.
        """

    @staticmethod
    @abstractmethod
    def explain_numbers(numbers: str) -> str:
        """Return why ranks wait for each other in collectives without a name, and what to do.

        Parameters
        ----------
        numbers
            How many such collectives each rank has started.
        """

    @staticmethod
    @abstractmethod
    def is_peer_error(error: RankError) -> bool:
        """Whether a cell's error on a rank is only that the ring has ended, as another failed."""

    @abstractmethod
    def _init_once(self) -> None:
        """Set `_ring`, join all ranks, and check the result of their first collective.

        Raises
        ------
        StartFailed
            The ring was not formed.
        """

    @abstractmethod
    def serve_init(self, rank: int) -> None:
        """Send a rank whose cell initializes the backend the address at which ranks connect."""

    @abstractmethod
    def close_rendezvous(self) -> None:
        """Make the initialization fail in ranks that wait for the address of another rank."""
