"""Refuses TCP connections of other users of this machine."""

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
"""Column of ``/proc/net/tcp``, after the state; see proc_net_tcp in the kernel's documents."""
_WORD_BYTES = 4
_LONGEST = 150
"""No line of the table is longer."""
_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
"""``NETLINK_SOCK_DIAG``, ``SOCK_DIAG_BY_FAMILY`` and ``NLM_F_REQUEST``; see sock_diag(7)."""
_HEADER = struct.Struct("=LHHLL")
_QUESTION = struct.Struct("=BBBxL2s2s16s16sLLL")
"""``inet_diag_req_v2``: any state, and no cookie."""
_ANSWER_STATE = _HEADER.size + 1
_ANSWER_UID = _HEADER.size + 64
"""Offsets of ``idiag_state`` and ``idiag_uid`` in an answer with ``inet_diag_msg``."""
_ANSWER_BYTES = 4096


def may_connect(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Return whether a connection may be accepted: not from another user of this machine.

    From another machine it may, because its user is unknown here. A connection that its client has
    closed is refused: it is in no table, or root's. Where tables cannot be read, all are accepted.

    Parameters
    ----------
    client, server
        Address and port of both ends, without the zone of an IPv6 address.
    """
    if not is_own_address(client[0]):
        return True
    with contextlib.suppress(OSError):
        if _ask_owner(client, server) == os.getuid():
            return True
    ends = f" {_endpoint(*client)} {_endpoint(*server)} {_ESTABLISHED} "
    is_known = False
    for table in ("tcp", "tcp6"):
        try:
            text = Path(f"/proc/net/{table}").read_text(encoding="ascii")
        except OSError:  # without IPv6; in some sandboxes there is neither
            continue
        is_known = True
        # not line by line: there may be thousands, and ranks ask many times per second
        found = text.find(ends)
        if found >= 0:
            return int(text[found + len(ends) :][:_LONGEST].split()[_UID]) == os.getuid()
    return not is_known


def _ask_owner(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user of the client's socket, if the system knows an established connection.

    This takes 0.1 ms; the tables take 5 ms, because they have all connections of the machine.
    """
    ends = [ipaddress.ip_address(address) for address, _ in (client, server)]
    family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6
    ports = [port.to_bytes(2, "big") for _, port in (client, server)]
    packed = [end.packed.ljust(16, b"\0") for end in ends]
    any_state = no_cookie = (1 << 32) - 1
    question = _QUESTION.pack(
        family, socket.IPPROTO_TCP, 0, any_state, *ports, *packed, 0, no_cookie, no_cookie
    )
    length = _HEADER.size + len(question)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)
        netlink.send(_HEADER.pack(length, _BY_FAMILY, _REQUEST, 0, 0) + question)
        answer = netlink.recv(_ANSWER_BYTES)
    if len(answer) < _ANSWER_UID + 4 or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    if answer[_ANSWER_STATE] != int(_ESTABLISHED, 16):
        return None
    return int.from_bytes(answer[_ANSWER_UID : _ANSWER_UID + 4], sys.byteorder)


def _endpoint(address: str, port: int) -> str:
    """Return an address and a port as in the table: words in the byte order of this machine."""
    packed = ipaddress.ip_address(address).packed
    words = [packed[at : at + _WORD_BYTES] for at in range(0, len(packed), _WORD_BYTES)]
    number = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{number}:{port:04X}"
