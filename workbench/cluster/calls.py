"""Calling functions of `workbench.rank.session` in engines, and waiting for their answers."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from workbench.cluster.agents import Process
from workbench.cluster.ranks import phrase, ranks_text
from workbench.errors import StartFailed

_POLL_S = 0.02
_ANSWER_S = 0.1


_STEPS = {
    "hello": "start",
    "join": "take its place",
    "meet": "join the ring",
    "part": "leave the ring",
}
"""What the functions do that are called in a rank, in an error."""


class CallFailed(StartFailed):
    """A function raised in an engine, which goes on; a process that ended is no such failure.

    Attributes
    ----------
    kind
        The class of the exception, by name.
    """

    def __init__(self, name: str, error: Exception, who: str = "a new rank") -> None:
        self.kind = str(getattr(error, "ename", type(error).__name__))
        why = getattr(error, "evalue", error)
        super().__init__(f"{who} failed to {_STEPS.get(name, name)}: {self.kind}: {why}")


class Calls:
    """Engines as ipyparallel's client reaches them, by number.

    Parameters
    ----------
    client_file
        How the client connects.
    check
        Called while answers are awaited; raises `StartFailed` where one of these
        processes has ended.
    timeout_s
        How long an answer may take.
    """

    def __init__(
        self,
        client_file: Path,
        check: Callable[[Iterable[Process]], None],
        timeout_s: float,
    ) -> None:
        # imported while the processes start, which takes as long
        import ipyparallel

        try:
            self._client = ipyparallel.Client(str(client_file))
        except TimeoutError as error:
            raise StartFailed(
                f"the ipyparallel controller does not answer ({error})",
                cure="end its process, and start another cluster",
            ) from None
        self._check = check
        self._timeout_s = timeout_s

    def close(self) -> None:
        """Leave the controller; the engines stay."""
        self._client.close()

    @property
    def engines(self) -> set[int]:
        """All that have registered."""
        return set(self._client.ids)

    def begin(self, engine: int, name: str, *given: Any, **options: Any) -> Any:
        """Call a function in one engine; returns ipyparallel's result, without waiting.

        Where it cannot even be sent, such as to an engine that has just gone, the
        result is a failed one.
        """
        try:
            return self._client[engine].apply_async(_Remote(name), *given, **options)
        except Exception as error:  # noqa: BLE001 - several of ipyparallel's, and IndexError
            return _NotSent(error)

    def greet_new(self, known: set[int], processes: list[Process]) -> dict[int, dict[str, Any]]:
        """Wait until the engines of these processes answer; return what each says of itself.

        Engines of a start that was given up may appear too, even dead: they are left out.

        Raises
        ------
        StartFailed
            A process has ended, an engine has failed, or the time is over.
        """
        deadline = time.monotonic() + self._timeout_s
        asked: dict[int, Any] = {}
        while True:
            for engine in self.engines - known - set(asked):
                asked[engine] = self.begin(engine, "hello")
            found = {
                engine: answer.get()
                for engine, answer in sorted(asked.items())
                if answer.ready() and not _is_dead(answer)
            }
            found = {engine: one for engine, one in found.items() if _process(one) in processes}
            if len(found) == len(processes):
                self._check(processes)  # one may have answered, and ended meanwhile
                return found
            self._check(processes)
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"{len(processes)} ranks were started, {len(found)} were ready after "
                    f"{self._timeout_s:g} s; is the machine overloaded?"
                )
            time.sleep(_POLL_S)

    def call(
        self,
        name: str,
        engines: list[int],
        arguments: Iterable[tuple[Any, ...]],
        *,
        processes: list[Process],
        ranks: list[int] | None = None,
        patience_s: float | None = None,
        **options: Any,
    ) -> list[Any]:
        """Call a function in engines at once, and return what each gave.

        Parameters
        ----------
        arguments
            Of each call.
        processes
            Those of the engines: where one ends, nobody waits any longer.
        ranks
            Who they are, in the words of an error; None where they are new.
        patience_s
            How long, instead of the usual time.

        Raises
        ------
        StartFailed
            It raised in an engine, a process has ended, or the time is over.
        """
        pending = [
            self.begin(engine, name, *given, **options)
            for engine, given in zip(engines, arguments, strict=True)
        ]
        try:
            self._wait(name, pending, processes, ranks, patience_s or self._timeout_s)
            return [answer.get() for answer in pending]
        except StartFailed:
            raise
        except Exception as error:
            engine = getattr(error, "engine_info", {}).get("engine_id")
            if ranks is None or engine not in engines:
                raise CallFailed(name, error) from error
            who = phrase([ranks[engines.index(engine)]])
            raise CallFailed(name, error, who) from error

    def _wait(
        self,
        name: str,
        pending: list[Any],
        processes: list[Process],
        ranks: list[int] | None,
        timeout_s: float,
    ) -> None:
        deadline = time.monotonic() + timeout_s
        for answer in pending:
            while not answer.wait(_ANSWER_S):
                self._check(processes)
                for one in pending:
                    if one.ready() and not one.successful():
                        one.get()  # raises what it raised there; the others may wait for it
                if time.monotonic() > deadline:
                    silent = [place for place, a in enumerate(pending) if not a.ready()]
                    named = phrase(ranks[p] for p in silent) if ranks else ""
                    who = named or f"{len(silent)} of {len(pending)} new ranks"
                    raise StartFailed(
                        f"{who} did not {_STEPS.get(name, name)} within {timeout_s:g} s",
                        cure=f"replace what does not answer with %cluster restart --ranks "
                        f"{ranks_text(ranks[p] for p in silent)}"
                        if ranks
                        else "",
                    )
        self._check(processes)  # one may have answered, and ended meanwhile


def _is_dead(answer: Any) -> bool:
    """Whether a call was not answered because its engine has ended.

    Raises
    ------
    StartFailed
        The engine is there, and the call has failed in it.
    """
    if answer.successful():
        return False
    error = answer.exception()
    if isinstance(answer, _NotSent) or type(error).__name__ == "EngineError":
        return True
    raise CallFailed("hello", error)


def _process(greeting: dict[str, Any]) -> Process:
    """Return whose greeting it is; an engine that no agent has started has no VM."""
    vm = str(greeting["place"]).partition(":")[0]
    return int(vm) if vm.isdecimal() else -1, greeting["pid"]


class _NotSent:
    """Stands for ipyparallel's result of a call that could not be sent."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def ready(self) -> bool:
        """Whether it has ended."""
        return True

    def successful(self) -> bool:
        """Whether it has given a value."""
        return False

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - as ipyparallel's
        """Return at once."""
        return True

    def exception(self) -> Exception:
        """Return why it failed."""
        return self._error

    def get(self) -> Any:
        """Raise why it failed."""
        raise self._error


class _Remote:
    """Calls a function of the rank's session there, without importing it here."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.__name__ = name

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Called in the rank."""
        session = importlib.import_module("workbench.rank.session")
        return getattr(session, self._name)(*args, **options)
