"""What someone without the keys can do: connect, read and write, as another user or elsewhere.

``python stranger.py UID`` reads a JSON object from stdin and prints one: with a UID it becomes
that user first. It imports only the standard library.
"""

import json
import os
import socket
import sys
from pathlib import Path

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00"
GREETING_BYTES = 64
NULL = b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
CLAIM = b"\x00\x02\x30\x30"
HTTP = b"GET /global/0 HTTP/1.0\r\n\r\n"
WAIT_S = 3.0


def talk(address, port, steps):
    """Send bytes, and read until there are so many, it is silent, or it closes; for each step.

    Returns all that was read; None if it does not accept.
    """
    try:
        client = socket.create_connection((address, port), WAIT_S)
    except OSError:
        return None
    got = b""
    with client:
        client.settimeout(WAIT_S)
        try:
            for data, wanted in steps:
                client.sendall(data)
                while len(got) < wanted and (piece := client.recv(4096)):
                    got += piece
        except OSError:  # reset, or nothing more comes
            pass
    return got


def probe_port(address, port):
    """Return what kind of port it is to a stranger."""
    # as RFC 23 has it: the mechanism follows when the version is known
    steps = [(GREETING, GREETING_BYTES), (NULL + READY + CLAIM, 4096)]
    answer = talk(address, port, steps)
    if answer is None:
        return "closed"
    if answer.startswith(b"\xff") and len(answer) >= GREETING_BYTES:
        mechanism = answer[12:32].rstrip(b"\0").decode("ascii", "replace")
        more = len(answer) > GREETING_BYTES
        return f"ZeroMQ {mechanism}" + (", answers without keys" if more else "")
    answer = talk(address, port, [(HTTP, 4096)])
    if answer:
        return f"answers {answer[:60]!r}"
    return "accepts, says nothing"


def probe_path(path):
    """Return what can be done with a file, a folder or a socket."""
    found = []
    about = Path(path)
    try:
        if about.is_dir():
            if os.listdir(path):  # noqa: PTH208 - a stranger's plain call
                found.append("list")
            mark = about / "of-a-stranger"
            mark.touch()
            mark.unlink()
            found.append("write")
            return found
    except OSError:
        return found
    for name, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY)):
        try:
            os.close(os.open(path, flags | os.O_NONBLOCK))
            found.append(name)
        except OSError:
            pass
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(WAIT_S)
            client.connect(str(path))
            found.append("connect")
    except (OSError, ValueError):
        pass
    return found


def probe_process(pid):
    """Return what can be read of a process, and whether it can be signalled."""
    found = []
    for name in ("environ", "mem", "maps", "fd", "cwd"):
        path = f"/proc/{pid}/{name}"
        try:
            if name == "fd":
                os.listdir(path)  # noqa: PTH208
            elif name == "cwd":
                os.readlink(path)  # noqa: PTH115
            else:
                with open(path, "rb") as file:  # noqa: PTH123
                    file.read(1)
            found.append(name)
        except OSError:
            pass
    try:
        os.kill(pid, 0)
        found.append("signal")
    except OSError:
        pass
    return found


def main():
    given = json.load(sys.stdin)
    if len(sys.argv) > 1:
        user = int(sys.argv[1])
        "localhost".encode("idna")  # loads the codec, whose file the user may not read
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    ports = {f"{host}:{port}": probe_port(host, port) for host, port in given.get("ports", [])}
    paths = {path: probe_path(path) for path in given.get("paths", [])}
    processes = {pid: probe_process(pid) for pid in given.get("processes", [])}
    print(json.dumps({"uid": os.getuid(), "ports": ports, "paths": paths, "processes": processes}))


if __name__ == "__main__":
    main()
