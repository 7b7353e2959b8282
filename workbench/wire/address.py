"""How a process connects to a socket of the kernel; this module does not load ZeroMQ."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Address:
    """An endpoint and keys, as Z85 text.

    Attributes
    ----------
    rank
        Number of the rank that connects, or `of_vm` for the merged stream of a VM.
    server_key, public_key, secret_key
        Public key of the kernel's socket, and key pair of the connecting socket. Empty for a
        socket in a folder that only this user can use.

    Examples
    --------
    >>> address = Address("tcp://10.0.0.1:5555", "server", "public", "secret", rank=3)
    >>> address.with_endpoint("ipc:///run/user/1000/records")
    Address(endpoint='ipc:///run/user/1000/records', server_key='', public_key='', secret_key='',
            rank=3)
    """

    endpoint: str
    server_key: str
    public_key: str
    secret_key: str
    rank: int

    def with_endpoint(self, endpoint: str) -> Address:
        """Return the address of a local endpoint, without keys, for the same rank."""
        return replace(self, endpoint=endpoint, server_key="", public_key="", secret_key="")

    def connect(self, client: Any) -> None:
        """Connect a ZeroMQ socket, encrypted if there are keys."""
        if self.server_key:
            client.curve_serverkey = self.server_key.encode()
            client.curve_publickey = self.public_key.encode()
            client.curve_secretkey = self.secret_key.encode()
        client.identity = str(self.rank).encode()
        client.connect(self.endpoint)


def of_vm(vm: int) -> int:
    """Return the negative number that stands for a VM; numbers of ranks are not negative.

    Examples
    --------
    >>> of_vm(0), of_vm(1)
    (-1, -2)
    """
    return -1 - vm


def is_own_address(address: str) -> bool:
    """Return whether an IPv4 or IPv6 address belongs to this VM, so that a socket can listen there.

    Examples
    --------
    >>> is_own_address("127.0.0.1")
    True
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
