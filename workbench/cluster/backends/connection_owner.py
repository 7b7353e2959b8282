"""Check that a TCP connection does not come from another user of this machine."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path

from workbench.wire.address import is_own_address

_ESTABLISHED = "01"
_UID = 3
"""Index of the user's column in ``/proc/net/tcp``, counted from the column after the state.

See proc_net_tcp in the documentation of the Linux kernel.
"""
_WORD_BYTES = 4
_MAX_LINE_CHARACTERS = 150
"""Maximum length of a line of the table."""
_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
"""``NETLINK_SOCK_DIAG``, ``SOCK_DIAG_BY_FAMILY`` and ``NLM_F_REQUEST``; see sock_diag(7)."""
_HEADER = struct.Struct("=LHHLL")
_INET_DIAG_REQUEST = struct.Struct("=BBBxL2s2s16s16sLLL")
"""``inet_diag_req_v2``, for sockets in any state and without a cookie."""
_ANSWER_STATE = _HEADER.size + 1
_ANSWER_UID = _HEADER.size + 64
"""Offsets of ``idiag_state`` and ``idiag_uid`` in an answer with ``inet_diag_msg``."""
_ANSWER_BYTES = 4096


def may_connect(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Return whether to accept a connection: it must not come from another user of this machine.

    Connections from other machines are accepted, because their users are unknown here. A connection
    that its client has closed is refused: the system no longer lists it, or lists it as root's. If
    the system's tables cannot be read, all connections are accepted.

    Parameters
    ----------
    client, server
        IP address and port of both ends, without the zone of an IPv6 address.
    """
    if not is_own_address(client[0]):
        return True
    with contextlib.suppress(OSError):
        if _ask_owner(client, server) == os.getuid():
            return True
    ends = f" {_endpoint(*client)} {_endpoint(*server)} {_ESTABLISHED} "
    has_table = False
    for table in ("tcp", "tcp6"):
        try:
            text = Path(f"/proc/net/{table}").read_text(encoding="ascii")
        except OSError:  # no IPv6, or a sandbox without both tables
            continue
        has_table = True
        # Search the whole text, not line by line: there may be thousands of lines, and ranks
        # connect many times per second.
        position = text.find(ends)
        if position >= 0:
            return (
                int(text[position + len(ends) :][:_MAX_LINE_CHARACTERS].split()[_UID])
                == os.getuid()
            )
    return not has_table


def _ask_owner(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user id of the client's socket; None if no established connection is known.

    This takes 0.1 ms. The tables take 5 ms, because they list all connections of the machine.
    """
    ends = [ipaddress.ip_address(address) for address, _ in (client, server)]
    family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6
    ports = [port.to_bytes(2, "big") for _, port in (client, server)]
    packed = [end.packed.ljust(16, b"\0") for end in ends]
    any_state = no_cookie = (1 << 32) - 1
    request = _INET_DIAG_REQUEST.pack(
        family, socket.IPPROTO_TCP, 0, any_state, *ports, *packed, 0, no_cookie, no_cookie
    )
    length = _HEADER.size + len(request)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)
        netlink.send(_HEADER.pack(length, _BY_FAMILY, _REQUEST, 0, 0) + request)
        answer = netlink.recv(_ANSWER_BYTES)
    if len(answer) < _ANSWER_UID + 4 or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    if answer[_ANSWER_STATE] != int(_ESTABLISHED, 16):
        return None
    return int.from_bytes(answer[_ANSWER_UID : _ANSWER_UID + 4], sys.byteorder)


def _endpoint(address: str, port: int) -> str:
    """Format an address and a port like the table: words in the byte order of this machine.

    Examples
    --------
    >>> _endpoint("::", 80)
    '00000000000000000000000000000000:0050'
    """
    packed = ipaddress.ip_address(address).packed
    words = [packed[i : i + _WORD_BYTES] for i in range(0, len(packed), _WORD_BYTES)]
    number = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{number}:{port:04X}"
