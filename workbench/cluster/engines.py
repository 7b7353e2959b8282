"""The engines of a cluster as ranks: brought up, joined in a ring, called, taken down."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from workbench.cluster.processes import Processes, exit_text
from workbench.cluster.ranks import RankInfo, ranks_text
from workbench.errors import HorovodMissing, StartFailed

if TYPE_CHECKING:
    import ipyparallel

    from workbench.timings import Timings
    from workbench.wire import Inbox

_INTERFACE = "lo"
"""Ranks of one machine meet on its loopback interface."""

_POLL_S = 0.02
_ANSWER_S = 0.1


class Engines:
    """n ipyparallel engines on this machine; `spawn`, then `start`, make ranks of them.

    Parameters
    ----------
    n
        How many.
    timeout_s
        For each step of the start.

    Attributes
    ----------
    ranks
        Who they are, once they have said hello.
    """

    def __init__(self, n: int, timeout_s: float) -> None:
        self.ranks: list[RankInfo] = []
        self._n = n
        self._timeout_s = timeout_s
        self._processes = Processes(n)
        self._client: ipyparallel.Client | None = None
        self._ids: list[int] = []

    def spawn(self) -> None:
        """Start the processes, which then need no one for a while; `stop` ends them."""
        self._processes.start(self._n)

    def start(self, control: Inbox, timings: Timings) -> None:
        """Make ranks of the processes: every one is known to be ready before any calls hvd.init().

        Raises
        ------
        StartFailed, HorovodMissing
            They did not come up; `stop` takes down what had started.
        """
        # imported while the processes start, which takes as long
        import ipyparallel

        self._processes.wait_for_controller(self._timeout_s)
        self._client = ipyparallel.Client(str(self._processes.client_file))
        self._wait_for_engines(self._client)
        self._ids = sorted(self._client.ids)
        greetings = self._call("hello", [(self._processes.threads,)] * self._n)
        self.ranks = [_rank_info(rank, found) for rank, found in enumerate(greetings)]
        addresses = [(control.address_for(r), timings.address_for(r)) for r in range(self._n)]
        self._call("join", [(a.to_content(), b.to_content(), self._n) for a, b in addresses])
        self._meet()

    def reform(self) -> None:
        """Leave a broken ring and form a new one; namespaces stand."""
        self._call("part", [()] * self._n)
        self._meet()

    def run(self, rank: int, number: int, source: str) -> None:
        """Send a cell to a rank; how it ends travels over the rank's own channel."""
        assert self._client is not None
        self._client[self._ids[rank]].apply_async(_Remote("run_cell"), number, source)

    def view(self, ranks: Iterable[int]) -> Any:
        """Return ipyparallel's view of some ranks."""
        assert self._client is not None
        return self._client[[self._ids[rank] for rank in ranks]]

    def lost(self) -> dict[int, str]:
        """Return why ranks can no longer answer, by rank."""
        exits = self._processes.exits()
        return {
            info.rank: f"its process {info.pid} on {info.vm} {exit_text(exits[info.pid])}"
            for info in self.ranks
            if info.pid in exits
        }

    def memory_bytes(self) -> dict[int, int]:
        """Return the resident memory of each rank that runs, by rank."""
        sizes = self._processes.memory_bytes()
        return {info.rank: sizes[info.pid] for info in self.ranks if info.pid in sizes}

    def stop(self) -> None:
        """End every process, and leave nothing behind."""
        if self._client is not None:
            self._client.close()
        self._processes.stop()

    def _wait_for_engines(self, client: ipyparallel.Client) -> None:
        deadline = time.monotonic() + self._timeout_s
        while len(client.ids) < self._n:
            self._processes.check()
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"{self._n} ranks were asked for, {len(client.ids)} were ready after "
                    f"{self._timeout_s:g} s; is the machine overloaded?"
                )
            time.sleep(_POLL_S)

    def _meet(self) -> None:
        """Form the ring, whose first collective proves that it works."""
        from workbench.cluster import ring

        plan = ring.assign([info.vm for info in self.ranks])
        with ring.Rendezvous(plan) as rendezvous:
            given = [(rendezvous.environment(rank, _INTERFACE),) for rank in range(self._n)]
            sums = self._call("meet", given)
        if any(total != self._n for total in sums):
            raise StartFailed(f"the ring's first sum over {self._n} ranks was {sums}")

    def _call(self, name: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Call a function of `workbench.rank.session` on every rank at once."""
        assert self._client is not None
        pending = [
            self._client[engine].apply_async(_Remote(name), *given)
            for engine, given in zip(self._ids, arguments, strict=True)
        ]
        try:
            self._wait_for_answers(name, pending)
            return [answer.get() for answer in pending]
        except StartFailed:
            raise
        except Exception as error:
            raise _start_error(error, name) from error

    def _wait_for_answers(self, name: str, pending: list[Any]) -> None:
        deadline = time.monotonic() + self._timeout_s
        for answer in pending:
            while not answer.wait(_ANSWER_S):
                self._processes.check()
                if time.monotonic() > deadline:
                    silent = ranks_text(r for r, a in enumerate(pending) if not a.ready())
                    raise StartFailed(
                        f"rank {silent} did not answer {name!r} within {self._timeout_s:g} s"
                    )


class _Remote:
    """Calls a function of the rank's session there, without importing it here."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.__name__ = name

    def __call__(self, *args: Any) -> Any:
        """Called in the rank."""
        import importlib

        session = importlib.import_module("workbench.rank.session")
        return getattr(session, self._name)(*args)


def _rank_info(rank: int, found: dict[str, Any]) -> RankInfo:
    gpu = str(rank % found["gpus"]) if found["gpus"] else "CPU"
    return RankInfo(rank, found["host"], found["pid"], gpu, _INTERFACE, "ready", found["threads"])


def _start_error(error: Exception, step: str) -> Exception:
    """Return the error to raise for a rank that failed in a step of the start."""
    text = str(error)
    if "No module named 'horovod'" in text or ("horovod" in text and "ImportError" in text):
        return HorovodMissing(
            f"the ranks cannot load Horovod ({text.splitlines()[-1]}): "
            "build it for this PyTorch with `workbench build-horovod`"
        )
    return StartFailed(f"the ranks failed at {step!r}: {text}")
