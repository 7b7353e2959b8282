"""A cluster that ipyparallel has started: its connection file, its engines, and calls on them."""

from __future__ import annotations

import contextlib
import json
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

_CONNECT_S = 10.0
_POLL_S = 0.02
_ENOUGH_S = 1.0
"""How long an engine may take to answer if the others are enough."""
_SETTLED_S = 2.0
"""A start of as many ranks as there are engines waits so long for another engine."""
_CALLS = "workbench.agent.engine_calls"
_WHO = "(lambda s, h: (h.gethostname(), s.executable))(__import__('sys'), __import__('socket'))"
_WHO_S = 5.0
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_UNPRIVILEGED = 1024
_TRIES = 20


def connection_file(job: Mapping[str, Any]) -> Path:
    """Return the connection file of a `JobRequest`; raise `StartFailed` if there is none."""
    given = job.get("connection_file")
    if given is not None:
        path = Path(given).expanduser()
        if path.is_file():
            return path.absolute()
        raise StartFailed(
            f"connection_file='{given}': "
            f"{'it is not a regular file' if path.exists() else 'there is no such file'}",
            cure="give the path of ipcontroller-client.json, which ipcontroller writes into the "
            "folder `security` of its profile",
        )
    from IPython.paths import locate_profile

    name = job.get("profile", "default")
    start = f"start its cluster with `ipcluster start --profile={name}`"
    try:
        security = Path(locate_profile(name)) / "security"
    except OSError:
        raise StartFailed(
            f"profile={name!r}: there is no such profile of IPython", cure=start
        ) from None
    path = security / "ipcontroller-client.json"
    found = [path] if path.is_file() else sorted(security.glob("ipcontroller-*-client.json"))
    if not found:
        raise StartFailed(f"profile={name!r}: no controller has written {path}", cure=start)
    if len(found) > 1:
        raise StartFailed(
            f"profile={name!r} has the connection files of several clusters: "
            f"{', '.join(one.name for one in found)}",
            cure=f"name one of them with connection_file, in {security}",
        )
    return found[0]


class ForeignCluster:
    """A client of another cluster's controller; its engines and its other clients go on.

    Parameters
    ----------
    file
        The connection file.
    source
        How users have named the cluster, for messages.

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
                cure="check that it runs and that this machine reaches it; one that listens only "
                "on its own machine must be started again with --ip='*'",
            ) from None
        except OSError as error:
            why = error.strerror or str(error)
            raise StartFailed(f"{file}: {why}", cure="make the file readable") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StartFailed(
                f"{file} is not a connection file of ipyparallel ({type(error).__name__}: {error})",
                cure="give the ipcontroller-client.json of a controller that runs",
            ) from None

    @property
    def engines(self) -> set[int]:
        """The numbers of the engines that are registered now."""
        return set(self._client.ids)

    def close(self) -> None:
        """Leave the controller."""
        self._client.close()

    def wait_for_engines(
        self, n: int, deadline: float, progress: Callable[[str], None], stop: threading.Event
    ) -> None:
        """Wait until n engines are registered; raise `StartFailed` if they are not in time.

        If n is 0, wait for the first, and until no others have come for `_SETTLED_S`.
        """
        began = changed = time.monotonic()
        known = 0
        while (found := len(self.engines)) < max(n, 1) or n == 0:
            now = time.monotonic()
            if found != known:
                known, changed = found, now
            if not n and found and (now - changed > _SETTLED_S or now > deadline):
                return
            there = f"{found} of {n}" if n and found else str(found or "no")
            if now > deadline or stop.is_set():
                raise StartFailed(
                    f"{there} engines are registered at {self._source} after {now - began:.0f} s",
                    cure="start more engines, ask for fewer ranks (n), or raise start_timeout_s",
                )
            progress(f"{there} engines are registered at {self._source}")
            time.sleep(_POLL_S)

    def describe(
        self, engines: set[int], enough: int, deadline: float, stop: threading.Event
    ) -> dict[int, dict[str, Any]]:
        """Return what engines report about themselves (`workbench.agent.engine_calls.describe`).

        Raise `StartFailed` if one cannot. With `enough` (not 0), those that are busy are left out
        if so many others have answered.
        """
        with _listening() as (addresses, port, token):
            expression = f"describe(*{(addresses, port, token)!r})"
            found = self.call(dict.fromkeys(engines, expression), deadline, stop, enough)
        failed = [error for error in found.values() if isinstance(error, StartFailed)]
        if failed:
            raise StartFailed.together(failed)
        return found

    def call(
        self,
        expressions: Mapping[int, str],
        deadline: float,
        stop: threading.Event,
        enough: int = 0,
    ) -> dict[int, Any]:
        """Evaluate calls of `workbench.agent.engine_calls` on engines; return results or errors.

        An error is a `StartFailed` that names the engine.
        """
        began, calls, found = time.monotonic(), {}, {}
        for engine, expression in expressions.items():
            text = f"__import__({_CALLS!r}, fromlist=['_']).{expression}"
            try:
                # as source and not as a function, which another version of Python cannot read
                calls[engine] = self._client[engine].apply_async(eval, text)
            except IndexError:
                found[engine] = self._ended(engine)
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
                found[engine] = self._result(engine, call)
                continue
            with contextlib.suppress(Exception):
                call.abort()  # the engine must not run it later
            if not enough or len(calls) - len(waiting) < enough:
                waited_s = time.monotonic() - began
                found[engine] = StartFailed(
                    f"engine {engine} of {self._source} is busy, or its controller has ended: it "
                    f"has not run a call for {waited_s:.0f} s",
                    cure="wait until its work has ended, or interrupt it, then start again",
                )
        return found

    def _result(self, engine: int, call: Any) -> Any:
        from ipyparallel.error import EngineError, RemoteError

        try:
            return call.get()
        except EngineError:
            return self._ended(engine)
        except RemoteError as error:
            said = f"{error.ename}: {error.evalue}"
        host, python = "", "its Python"
        with contextlib.suppress(Exception):
            host, python = self._client[engine].apply_async(eval, _WHO).get(_WHO_S)
        vm = f"engine {engine} of {self._source}" + (f" on {host}" if host else "")
        cause, cure = python_failure(None, said, python) or (
            f"it cannot start ranks ({said})",
            (
                f"install gradient-workbench there in the same version: {python} -m pip install "
                "gradient-workbench"
            ),
        )
        return StartFailed(cause, vm=vm, cure=cure)

    def _ended(self, engine: int) -> StartFailed:
        return StartFailed(
            f"engine {engine} of {self._source} has ended", cure="start another engine"
        )


def free_port(address: str) -> int:
    """Return a free port of this machine at which a later kernel can listen too.

    It is outside of the range that the system gives to connections, if there are such ports.
    """
    low, high = map(int, _EPHEMERAL.read_text().split()) if _EPHEMERAL.exists() else (0, 0)
    ports = range(max(high + 1, _UNPRIVILEGED), 1 << 16) or range(_UNPRIVILEGED, low)
    for port in [*random.sample(ports, min(_TRIES, len(ports))), 0]:
        with contextlib.suppress(OSError), socket.create_server((address, port)) as probe:
            return int(probe.getsockname()[1])
    raise StartFailed(
        f"no port of {address} is free", cure="end processes that listen there (`ss -ltnp`)"
    )


@contextlib.contextmanager
def _listening() -> Iterator[tuple[list[str], int, str]]:
    """Send a token to whatever connects, so that an engine finds addresses of this machine."""
    token = secrets.token_hex(16)
    own = [
        one.address
        for addresses in psutil.net_if_addrs().values()
        for one in addresses
        if one.family == socket.AF_INET
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
            # loopback last: an engine on this machine reaches all of them
            addresses = sorted(own, key=lambda address: address.startswith("127."))
            yield addresses, server.getsockname()[1], token
        finally:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # ends accept
