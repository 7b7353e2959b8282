"""Capture the TCP packets of an interface: ``python -m tests.truth.capture INTERFACE FILE``.

It writes one row per packet of IPv4 as an array of NumPy when its standard input ends, and prints
how many packets the kernel had to leave out. Packets are stamped by the kernel after the queue of
the link when they are sent, and after that of the other end when they arrive.
"""

import os
import select
import socket
import struct
import sys
import time

import numpy as np

PACKET = np.dtype(
    [
        ("time_ns", np.int64),  # of time.perf_counter_ns()
        *((name, np.int64) for name in ("sent", "frame", "payload", "peer", "stream", "sequence")),
    ]
)
"""`sent` is 1 for a packet that leaves; `frame` and `payload` are bytes; `peer` is the last number
of the other address; `stream` identifies the connection."""
LIMIT_S = 300.0
_SOL_PACKET, _STATISTICS, _OUTGOING = 263, 6, 4
_STAMPS = 35  # SO_TIMESTAMPNS
_BUFFER_FORCE = 33  # SO_RCVBUFFORCE
_HEADERS = 128
_AT_ONCE = 1000
"""Most packets between two checks of standard input."""
_ALL = 3  # ETH_P_ALL


def capture(interface, path):
    """Capture until standard input ends, or for `LIMIT_S`."""
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    listener.setsockopt(socket.SOL_SOCKET, _BUFFER_FORCE, 256 << 20)
    listener.setsockopt(socket.SOL_SOCKET, _STAMPS, 1)
    # only a socket for all protocols is given packets that leave
    listener.bind((interface, _ALL))
    listener.setblocking(False)
    offset = sorted(_offset() for _ in range(101))[50]
    found, end = [], time.monotonic() + LIMIT_S
    print("ready", flush=True)
    while time.monotonic() < end:
        ready, _, _ = select.select([listener, sys.stdin], [], [], 1.0)
        if listener in ready:
            _read(listener, found, offset)
        if sys.stdin in ready:
            break
    for _ in range(_AT_ONCE):  # what has come since
        if not _read(listener, found, offset):
            break
    statistics = listener.getsockopt(_SOL_PACKET, _STATISTICS, 8)
    np.save(path, np.array(found, PACKET))
    print(struct.unpack("II", statistics)[1], flush=True)


def _offset():
    """Return how much the clock of the stamps is ahead of ``perf_counter``."""
    before = time.perf_counter_ns()
    return time.time_ns() - (before + time.perf_counter_ns()) // 2


def _read(listener, found, offset):
    """Add packets that have come; return whether there may be more."""
    for _ in range(_AT_ONCE):
        try:
            data, more, _, address = listener.recvmsg(_HEADERS, 64)
        except BlockingIOError:
            return False
        packet = parse(data)
        if packet is None:
            continue
        seconds, nanoseconds = struct.unpack("qq", more[0][2][:16])
        sent = int(address[2] == _OUTGOING)
        total, header, ends, stream, sequence = packet
        found.append(
            (
                seconds * 1_000_000_000 + nanoseconds - offset,
                *(sent, 14 + total, total - header, ends[sent], stream, sequence),
            )
        )
    return True


def parse(data):
    """Return total bytes, those of headers, ends, stream and sequence of TCP; None for others."""
    if len(data) < 54 or data[12:14] != b"\x08\x00" or data[23] != 6:
        return None
    internet = (data[14] & 15) * 4
    total = int.from_bytes(data[16:18], "big")
    tcp = 14 + internet
    source, target, sequence = struct.unpack_from(">HHI", data, tcp)
    header = internet + (data[tcp + 12] >> 4) * 4
    return total, header, (data[29], data[33]), source << 16 | target, sequence


def stream_bytes(packets):
    """Return the bytes of all connections in one direction, without those that were sent again."""
    total = 0
    for stream in np.unique(packets["stream"]):
        own = packets[packets["stream"] == stream]
        first, most = int(own["sequence"][0]), 0
        for sequence, payload in zip(
            own["sequence"].tolist(), own["payload"].tolist(), strict=True
        ):
            # sequence numbers are of 32 bits: the one nearest to the end so far
            ahead = (sequence - first - most + (1 << 31)) % (1 << 32) - (1 << 31)
            most = max(most, most + ahead + payload)
        total += most
    return total


if __name__ == "__main__":
    os.nice(-10)  # a full buffer loses packets
    capture(*sys.argv[1:])
