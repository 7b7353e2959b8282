"""Refuses TCP connections of other users of this machine."""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path

from workbench.wire.address import is_own_address

_ESTABLISHED = "01"
_UID = 3
"""Column of ``/proc/net/tcp``, after the state; see proc_net_tcp in the kernel's documents."""
_WORD_BYTES = 4
_LONGEST = 150
"""No line of the table is longer."""


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


def _endpoint(address: str, port: int) -> str:
    """Return an address and a port as in the table: words in the byte order of this machine."""
    packed = ipaddress.ip_address(address).packed
    words = [packed[at : at + _WORD_BYTES] for at in range(0, len(packed), _WORD_BYTES)]
    number = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{number}:{port:04X}"
