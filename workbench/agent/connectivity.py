"""Determine which addresses of this VM other VMs can reach."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import secrets
import selectors
import socket
import threading
import time
from typing import Any

import psutil

_log = logging.getLogger(__name__)

_TIMEOUT_S = 3.0


class Connectivity:
    """Tests the network connections of this VM for the kernel."""

    def __init__(self) -> None:
        self._servers: list[socket.socket] = []

    def route(self, to: list[str]) -> list[dict[str, str]]:
        """Return the route to each address: its interface and its source address.

        Both values are empty if there is no route.
        """
        interface_by_address = {
            entry.address.split("%")[0]: name
            for name, entries in psutil.net_if_addrs().items()
            for entry in entries
        }
        routes = []
        for target in to:
            source = _source(target)
            routes.append({"source": source, "interface": interface_by_address.get(source, "")})
        return routes

    def listen(self, address: str) -> dict[str, Any]:
        """Listen on a free port of `address`, and send a token to each client.

        Return the port and the token, or an error if this VM cannot listen there.
        """
        token = secrets.token_hex(8)
        try:
            server = socket.create_server((address, 0), family=_family(address), backlog=64)
        except OSError as error:
            return {"error": str(error)}
        self._servers.append(server)
        threading.Thread(target=_send_token, args=(server, token), daemon=True).start()
        return {"port": server.getsockname()[1], "token": token}

    def reach(self, targets: list[tuple[str, int, str]], source: str) -> list[dict[str, Any]]:
        """Connect from `source` to all targets concurrently.

        Parameters
        ----------
        targets
            For each target: an address, a port, and the token that the server there sends.
        source
            The address of this VM from which to connect.

        Returns
        -------
        list of dict
            For each target: ``"ms"``, the duration in milliseconds, or ``"error"``, the reason of
            the failure. Both are set if a server answers with another token.
        """
        results: list[dict[str, Any]] = [{"error": "no answer"} for _ in targets]
        threads = [
            threading.Thread(target=_connect, args=(target, source, result), daemon=True)
            for target, result in zip(targets, results, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _log.debug(
            "Connections from %s to %s: %s", source, [target[:2] for target in targets], results
        )
        return results

    def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        self._servers.clear()


def networks() -> dict[str, str]:
    """Return the network of each address of this VM.

    Examples
    --------
    >>> networks()["127.0.0.1"]
    '127.0.0.0/8'
    """
    networks_by_address = {}
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            with contextlib.suppress(ValueError):
                address = entry.address.split("%")[0]
                interface = ipaddress.ip_interface(f"{address}/{_prefix(entry.netmask)}")
                networks_by_address[entry.address] = str(interface.network)
    return networks_by_address


def _prefix(netmask: str | None) -> str:
    """Convert a netmask to the form that `ipaddress` needs: a prefix length for IPv6.

    Examples
    --------
    >>> _prefix("ffff:ffff:ffff:ffff::")
    '64'
    >>> _prefix("255.255.255.0")
    '255.255.255.0'
    """
    if netmask is None:
        raise ValueError("no netmask")
    if ":" not in netmask:
        return netmask
    return str(int(ipaddress.ip_address(netmask)).bit_count())


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _source(target: str) -> str:
    """Return the local address of the route to `target`. This sends no packet."""
    with socket.socket(_family(target), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))  # any port: a UDP socket only looks up the route
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _send_token(server: socket.socket, token: str) -> None:
    """Send the token to each client, until the server is closed."""
    with selectors.DefaultSelector() as selector, contextlib.suppress(OSError, ValueError):
        selector.register(server, selectors.EVENT_READ)
        while True:
            selector.select()
            peer, _ = server.accept()
            with peer:
                peer.sendall(token.encode())


def _connect(target: tuple[str, int, str], source: str, result: dict[str, Any]) -> None:
    """Connect to a target, and store the duration or the error in `result`."""
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
