"""Determines which addresses of this VM other VMs can reach."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import selectors
import socket
import threading
import time
from typing import Any

import psutil

_TIMEOUT_S = 3.0


class Connectivity:
    """Tests connections of this VM for the kernel."""

    def __init__(self) -> None:
        self._servers: list[socket.socket] = []

    def route(self, to: list[str]) -> list[dict[str, str]]:
        """Return, for each address, the interface and the source address of the route to it."""
        names = {
            entry.address.split("%")[0]: name
            for name, entries in psutil.net_if_addrs().items()
            for entry in entries
        }
        found = []
        for target in to:
            source = _source(target)
            found.append({"source": source, "interface": names.get(source, "")})
        return found

    def listen(self, address: str) -> dict[str, Any]:
        """Listen on a free port of `address`; return the port and the token sent to each client."""
        token = secrets.token_hex(8)
        try:
            server = socket.create_server((address, 0), family=_family(address), backlog=64)
        except OSError as error:
            return {"error": str(error)}
        self._servers.append(server)
        threading.Thread(target=_answer, args=(server, token), daemon=True).start()
        return {"port": server.getsockname()[1], "token": token}

    def reach(self, targets: list[tuple[str, int, str]], source: str) -> list[dict[str, Any]]:
        """Connect from `source` to each ``(address, port, token)``, all at the same time."""
        results: list[dict[str, Any]] = [{"error": "no answer"} for _ in targets]
        threads = [
            threading.Thread(target=_try, args=(target, source, result), daemon=True)
            for target, result in zip(targets, results, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        self._servers.clear()


def networks() -> dict[str, str]:
    """Return the network of each address of this VM, such as ``"10.1.2.0/24"``."""
    found = {}
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            with contextlib.suppress(ValueError):
                address = entry.address.split("%")[0]
                interface = ipaddress.ip_interface(f"{address}/{_prefix(entry.netmask)}")
                found[entry.address] = str(interface.network)
    return found


def _prefix(netmask: str | None) -> str:
    """Return a netmask in the form that `ipaddress` needs: IPv6's as a prefix length."""
    if netmask is None:
        raise ValueError("no netmask")
    if ":" not in netmask:
        return netmask
    return str(int(ipaddress.ip_address(netmask)).bit_count())


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _source(target: str) -> str:
    """Return the local address of the route to `target`; nothing is sent."""
    with socket.socket(_family(target), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _answer(server: socket.socket, token: str) -> None:
    with selectors.DefaultSelector() as selector, contextlib.suppress(OSError, ValueError):
        selector.register(server, selectors.EVENT_READ)
        while True:
            selector.select()
            peer, _ = server.accept()
            with peer:
                peer.sendall(token.encode())


def _try(target: tuple[str, int, str], source: str, result: dict[str, Any]) -> None:
    address, port, token = target
    began = time.monotonic()
    try:
        with socket.create_connection((address, port), _TIMEOUT_S, (source, 0)) as peer:
            peer.settimeout(_TIMEOUT_S)
            answer = peer.recv(64).decode("ascii", "replace")
    except OSError as error:
        result["error"] = str(error) or type(error).__name__
        return
    result.pop("error")
    if answer != token:
        result["error"] = f"someone else answers on {address}:{port}"
    result["ms"] = (time.monotonic() - began) * 1e3
