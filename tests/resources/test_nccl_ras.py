"""NCCL's RAS, with a server that speaks its text protocol over a real socket."""

import json
import socketserver
from contextlib import contextmanager

import pytest
from timers import InThread

from workbench.resources import Unknown
from workbench.resources.nccl_ras import read_ras

STATUS = {"nccl_version": "2.28.7", "communicators": [{"hash": "0x1", "missing_ranks": [3]}]}


@contextmanager
def server(answer):
    """Serve one port; `answer` returns the bytes for each line, and None to close."""
    heard = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            for line in self.rfile:
                heard.append(line.decode().strip())
                reply = answer(heard[-1])
                if reply is None:
                    return
                self.wfile.write(reply[0])
                if reply[1]:
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        InThread(listening.serve_forever)
        try:
            yield f"127.0.0.1:{listening.server_address[1]}", heard
        finally:
            listening.shutdown()


def nccl(*, json_format):
    """What NCCL answers: 2.24 does not know SET FORMAT."""

    def answer(line):
        if line.startswith("CLIENT PROTOCOL "):
            return b"SERVER PROTOCOL 2\n", False
        if line.startswith("SET FORMAT") and not json_format:
            return b"ERROR: Unknown command 'SET FORMAT json'\n", False
        if line == "VERBOSE STATUS":
            text = json.dumps(STATUS) if json_format else "NCCL version 2.24\n1 dead rank\n"
            return text.encode(), True
        return b"OK\n", False

    return answer


def test_json(monkeypatch):
    """The address is that of NCCL_RAS_ADDR, as for the ranks."""
    with server(nccl(json_format=True)) as (address, heard):
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        found = read_ras()
    assert (found.format, found.status, found.protocol) == ("json", STATUS, "2")
    assert found.address == address
    assert [line.split()[0] for line in heard] == ["CLIENT", "TIMEOUT", "SET", "VERBOSE"]


def test_text_of_an_earlier_version():
    with server(nccl(json_format=False)) as (address, _):
        found = read_ras(address)
    assert found.format == "text"
    assert "1 dead rank" in found.status


@pytest.mark.parametrize("depth", [100, 100_000])
def test_deep_json_is_text(depth):
    """Code that follows the values recursively would fail on it."""
    status = "[" * depth + "]" * depth

    def answer(line):
        if line == "VERBOSE STATUS":
            return status.encode(), True
        return nccl(json_format=True)(line)

    with server(answer) as (address, _):
        found = read_ras(address)
    assert (found.format, found.status) == ("text", status)


@pytest.mark.parametrize(
    ("answer", "limit_s", "why"),
    [
        (lambda _: (b"SSH-2.0-OpenSSH\n", False), 3.0, "not NCCL's RAS protocol"),
        (lambda _: None, 3.0, "closed the connection"),
        (lambda _: (b"", False), 0.5, "did not answer within 0.5 s"),
        (lambda _: (b"x" * (1 << 20), False), 3.0, "with more than 65,536 bytes"),
    ],
    ids=["another service", "closed", "silent", "endless line"],
)
def test_another_server_is_named(answer, limit_s, why):
    with server(answer) as (address, _):
        found = read_ras(address, limit_s=limit_s)
    assert isinstance(found, Unknown)
    assert why in found.reason


def test_nothing_listens():
    with server(lambda _: None) as (address, _):
        pass
    assert "nothing listens" in read_ras(address).reason


@pytest.mark.parametrize("address", ["host", "host:", "host:x", "host:70000"])
def test_an_invalid_address(address):
    assert "not host:port" in read_ras(address).reason
