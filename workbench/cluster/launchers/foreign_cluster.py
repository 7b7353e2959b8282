"""A cluster that ipyparallel has started: find its connection file, and call its engines."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from workbench.cluster.launchers import python_failure
from workbench.errors import StartFailed

_log = logging.getLogger(__name__)

_CONNECT_S = 10.0
_POLL_S = 0.02
_ENOUGH_S = 1.0
"""Maximum time for the answers of busy engines, if enough other engines have answered."""
_SETTLED_S = 2.0
"""If the user gives no number of ranks, the start waits this long for a further engine."""
_CALLS = "workbench.agent.engine_calls"
_IDENTIFY = (
    "(lambda s, h: (h.gethostname(), s.executable))(__import__('sys'), __import__('socket'))"
)
_MAX_IDENTIFY_S = 5.0
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_UNPRIVILEGED = 1024
_MAX_PORT_TRIES = 20


def connection_file(job: Mapping[str, Any]) -> Path:
    """Return the path of the connection file of a `JobRequest`.

    Raises
    ------
    StartFailed
        The file or the profile does not exist, or the profile has several connection files.

    Examples
    --------
    >>> connection_file({"connection_file": "/nonexistent.json"})
    Traceback (most recent call last):
        ...
    workbench.errors.StartFailed: ...there is no such file...
    """
    named_file = job.get("connection_file")
    if named_file is not None:
        path = Path(named_file).expanduser()
        if path.is_file():
            return path.absolute()
        raise StartFailed(
            f"connection_file='{named_file}': "
            f"{'it is not a regular file' if path.exists() else 'there is no such file'}",
            fix="give the path of ipcontroller-client.json, which ipcontroller writes into the "
            "folder `security` of its profile",
        )
    from IPython.paths import locate_profile

    name = job.get("profile", "default")
    start = f"start its cluster with `ipcluster start --profile={name}`"
    try:
        security = Path(locate_profile(name)) / "security"
    except OSError:
        raise StartFailed(
            f"profile={name!r}: there is no such profile of IPython", fix=start
        ) from None
    path = security / "ipcontroller-client.json"
    paths = [path] if path.is_file() else sorted(security.glob("ipcontroller-*-client.json"))
    if not paths:
        raise StartFailed(f"profile={name!r}: no controller has written {path}", fix=start)
    if len(paths) > 1:
        raise StartFailed(
            f"profile={name!r} has the connection files of several clusters: "
            f"{', '.join(file.name for file in paths)}",
            fix=f"name one of them with connection_file, in {security}",
        )
    return paths[0]


class ForeignCluster:
    """A client of another cluster's controller. It does not disturb engines and other clients.

    Parameters
    ----------
    file
        The connection file of the controller.
    source
        The name of the cluster in messages.

    Raises
    ------
    StartFailed
        The file cannot be used, or the controller does not answer.
    """

    def __init__(self, file: Path, source: str) -> None:
        import ipyparallel

        self._source = source
        try:
            info = json.loads(file.read_text(encoding="utf-8"))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                self._client = ipyparallel.Client(info, timeout=_CONNECT_S)
        except TimeoutError:
            raise StartFailed(
                f"the controller of {source} has not answered for {_CONNECT_S:g} s ({file})",
                fix="check that it runs and that this machine reaches it; one that listens only "
                "on its own machine must be started again with --ip='*'",
            ) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise StartFailed(f"{file}: {reason}", fix="make the file readable") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StartFailed(
                f"{file} is not a connection file of ipyparallel ({type(error).__name__}: {error})",
                fix="give the ipcontroller-client.json of a controller that runs",
            ) from None

    @property
    def engines(self) -> set[int]:
        """The numbers of the engines that are registered now."""
        return set(self._client.ids)

    def close(self) -> None:
        """Disconnect from the controller."""
        self._client.close()

    def wait_for_engines(
        self, n: int, deadline: float, progress: Callable[[str], None], stop: threading.Event
    ) -> None:
        """Wait until n engines are registered.

        If n is 0, wait until an engine is registered, and no further one has followed for 2 s.

        Parameters
        ----------
        n
            The number of engines to wait for.
        deadline
            The time at which to give up, on the clock of `time.monotonic`.
        progress
            Called with one line about the progress of the wait.
        stop
            An event: if it is set, give up at once.

        Raises
        ------
        StartFailed
            Too few engines are registered in time.
        """
        began = changed = time.monotonic()
        last_count = 0
        while (count := len(self.engines)) < max(n, 1) or n == 0:
            now = time.monotonic()
            if count != last_count:
                last_count = count
                changed = now
            if not n and count and (now - changed > _SETTLED_S or now > deadline):
                return
            count_text = f"{count} of {n}" if n and count else str(count or "no")
            if now > deadline or stop.is_set():
                raise StartFailed(
                    f"{count_text} engines are registered at {self._source} "
                    f"after {now - began:.0f} s",
                    fix="start more engines, ask for fewer ranks (n), or raise start_timeout_s",
                )
            progress(f"{count_text} engines are registered at {self._source}")
            time.sleep(_POLL_S)

    def describe(
        self, engines: set[int], enough: int, deadline: float, stop: threading.Event
    ) -> dict[int, dict[str, Any]]:
        """Return the descriptions of engines (`workbench.agent.engine_calls.describe`).

        Parameters
        ----------
        engines
            The numbers of the engines.
        enough
            If this is not 0, and this many engines have answered, leave out the busy engines.
        deadline
            The time at which to give up, on the clock of `time.monotonic`.
        stop
            An event: if it is set, give up at once.

        Raises
        ------
        StartFailed
            An engine has failed or has not answered in time.
        """
        with _token_server() as (addresses, port, token):
            expression = f"describe(*{(addresses, port, token)!r})"
            results = self.call(dict.fromkeys(engines, expression), deadline, stop, enough)
        failed = [error for error in results.values() if isinstance(error, StartFailed)]
        if failed:
            raise StartFailed.together(failed)
        return results

    def call(
        self,
        expressions: Mapping[int, str],
        deadline: float,
        stop: threading.Event,
        enough: int = 0,
    ) -> dict[int, Any]:
        """Call functions of `workbench.agent.engine_calls` on engines.

        Parameters
        ----------
        expressions
            The call of each engine, as source text such as ``"describe(...)"``.
        deadline
            The time at which to give up, on the clock of `time.monotonic`.
        stop
            An event: if it is set, give up at once.
        enough
            See `describe`.

        Returns
        -------
        dict
            The result of each engine, or a `StartFailed` that names the engine.
        """
        began = time.monotonic()
        calls: dict[int, Any] = {}
        results: dict[int, Any] = {}
        for engine, expression in expressions.items():
            source = f"__import__({_CALLS!r}, fromlist=['_']).{expression}"
            try:
                # Send source text: another version of Python could not unpickle a function.
                calls[engine] = self._client[engine].apply_async(eval, source)
            except IndexError:
                results[engine] = self._ended(engine)
        while waiting := [engine for engine, call in calls.items() if not call.ready()]:
            now = time.monotonic()
            answered = len(calls) - len(waiting)
            if now > deadline or stop.is_set():
                break
            if enough and answered >= enough and now - began > _ENOUGH_S:
                break
            time.sleep(_POLL_S)
        for engine, call in calls.items():
            if engine not in waiting:
                results[engine] = self._result(engine, call)
                continue
            with contextlib.suppress(Exception):
                call.abort()  # the engine must not run the call later
            if not enough or len(calls) - len(waiting) < enough:
                waited_s = time.monotonic() - began
                _log.debug("Engine %d has not answered for %.1f s", engine, waited_s)
                results[engine] = StartFailed(
                    f"engine {engine} of {self._source} is busy, or its controller has ended: it "
                    f"has not run a call for {waited_s:.0f} s",
                    fix="wait until its work has ended, or interrupt it, then start again",
                )
        return results

    def _result(self, engine: int, call: Any) -> Any:
        """Return the result of a completed call, or the `StartFailed` about its failure."""
        from ipyparallel.error import EngineError, RemoteError

        try:
            return call.get()
        except EngineError:
            return self._ended(engine)
        except RemoteError as error:
            message = f"{error.ename}: {error.evalue}"
        host = ""
        python = "its Python"
        with contextlib.suppress(Exception):
            host, python = self._client[engine].apply_async(eval, _IDENTIFY).get(_MAX_IDENTIFY_S)
        vm = f"engine {engine} of {self._source}" + (f" on {host}" if host else "")
        cause, fix = python_failure(None, message, python) or (
            f"it cannot start ranks ({message})",
            (
                f"install gradient-workbench there in the same version: {python} -m pip install "
                "gradient-workbench"
            ),
        )
        return StartFailed(cause, vm=vm, fix=fix)

    def _ended(self, engine: int) -> StartFailed:
        return StartFailed(
            f"engine {engine} of {self._source} has ended", fix="start another engine"
        )


def free_port(address: str) -> int:
    """Return a free port of this machine that probably stays free for a later kernel.

    The port is outside of the range from which the system assigns ports to connections, if such
    ports are available.

    Raises
    ------
    StartFailed
        No port is free.
    """
    low, high = map(int, _EPHEMERAL.read_text().split()) if _EPHEMERAL.exists() else (0, 0)
    ports = range(max(high + 1, _UNPRIVILEGED), 1 << 16) or range(_UNPRIVILEGED, low)
    for port in [*random.sample(ports, min(_MAX_PORT_TRIES, len(ports))), 0]:
        with contextlib.suppress(OSError), socket.create_server((address, port)) as probe:
            return int(probe.getsockname()[1])
    raise StartFailed(
        f"no port of {address} is free", fix="end processes that listen there (`ss -ltnp`)"
    )


@contextlib.contextmanager
def _token_server() -> Iterator[tuple[list[str], int, str]]:
    """Run a server that sends a token to each client, so that engines can test addresses.

    Yields
    ------
    tuple
        The IPv4 addresses of this machine, the port of the server, and the token.
    """
    token = secrets.token_hex(16)
    local_addresses = [
        interface_address.address
        for interface_addresses in psutil.net_if_addrs().values()
        for interface_address in interface_addresses
        if interface_address.family == socket.AF_INET
    ]
    with socket.create_server(("", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.sendall(token.encode() + b"\n")

        threading.Thread(target=answer, name="workbench-reachable", daemon=True).start()
        try:
            # Loopback addresses come last, because an engine on this machine reaches all addresses.
            addresses = sorted(local_addresses, key=lambda address: address.startswith("127."))
            yield addresses, server.getsockname()[1], token
        finally:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # makes accept() return
