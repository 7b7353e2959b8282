"""Requests of any path, query, headers and body to a real server: never a 500, never without token.

The server also has what kernels leave for it: entries of clusters and notices of any content.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import urllib.parse

import pytest
from hostile import controls
from hypothesis import example, given
from hypothesis import strategies as st
from random_inputs import json_values, one_in, texts
from server.process import TOKEN, Server

from workbench.resources.process_registry import CLUSTERS_FOLDER, ProcessRegistry, jupyter_folder

ROUTES = ("snapshot", "findings", "read", "clusters", "live", "runs", "nothing", "")
RIGHT = {"Authorization": f"token {TOKEN}"}
MARK = "a-run-of-this-test"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    run = folder / "runs" / MARK
    run.mkdir(parents=True)
    (run / "evidence-1.zip").write_bytes(b"PK evidence")
    (run / "run.json").write_text("{}")
    started = Server(environment={"GRADIENT_WORKBENCH_RUNS": str(folder / "runs")})
    yield started
    started.stop()


def quoted(text):
    return urllib.parse.quote(text.encode("utf-8", "surrogatepass"), safe="/%.")


parts = st.one_of(
    st.sampled_from((*ROUTES, "files", MARK, "evidence-1.zip", "run.json", "..", "%2e%2e", "%2f",
                     "%00", "%ff", "a" * 300, "\x1b[2J")),
    texts,
)  # fmt: skip
paths = st.lists(parts, max_size=5).map("/".join).map(quoted)
queries = st.dictionaries(st.sampled_from(("name", "token", "x", "_xsrf")) | texts, texts).map(
    lambda given_: urllib.parse.urlencode(
        {
            key.encode("utf-8", "replace"): value.encode("utf-8", "replace")
            for key, value in given_.items()
            if key != "token"
        }
    )
)
methods = st.sampled_from(("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"))
bodies = st.one_of(
    st.none(), st.binary(max_size=60), json_values.map(lambda one: json.dumps(one).encode())
)


@given(paths, queries, methods, bodies)
@example(f"runs/{MARK}/files/evidence-1.zip", "", "GET", None)
@example(f"runs/{MARK}/files/run.json", "", "GET", None)
@example("runs/../files/evidence-1.zip", "", "GET", None)
@example("clusters/%00", "", "DELETE", None)
@example("read", "name=%ff%00%1b", "POST", b"\xff")
def test_any_request(server, path, query, method, body):
    """With the token: an answer that is no 500. Without: nothing of this extension is answered."""
    target = f"workbench/api/{path}" + (f"?{query}" if query else "")
    answer = server.ask(target, method, body, RIGHT)
    assert answer.status < 500, answer
    kind = answer.headers.get("Content-Type", "")
    if kind.startswith("application/json") and answer.body:
        plain = json.loads(answer.body)
        assert controls(json.dumps(plain, ensure_ascii=False)) == set()
    for headers in ({}, {"Authorization": "token wrong"}, {"Cookie": "_xsrf=x; username=y"}):
        refused = server.ask(target, method, body, headers)
        assert refused.status < 500
        assert refused.status >= 300 or method == "OPTIONS", (headers, refused)
        assert b"PK evidence" not in refused.body
        assert b'"snapshot"' not in refused.body


@one_in(3)
@given(st.binary(max_size=200), st.booleans())
@example(b"GET /workbench/api/read HTTP/1.1\r\nContent-Length: -1\r\n\r\n", True)
@example(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n", False)
def test_any_bytes_on_the_port(server, data, line):
    """Bytes that are no request leave the server as it was."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.port), 20)) as client:
        client.sendall(data + (b"\r\n\r\n" if line else b""))
        client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            answer = client.recv(4096)
            assert not answer.startswith(b"HTTP/1.1 500")
            assert not answer.startswith(b"HTTP/1.1 200")
    assert server.ask("workbench/api/clusters", headers=RIGHT).status == 200


@one_in(4)
@given(st.lists(st.tuples(st.integers(0, 15), st.binary(max_size=140), st.booleans()), max_size=5))
def test_any_frames_on_the_web_socket(server, frames):
    """What a client sends on the live socket is ignored, or ends that connection alone."""
    client = server.open(RIGHT)
    try:
        raw = client.sock
        for opcode, data, final in frames:
            head = bytes([(0x80 if final else 0) | opcode, 0x80 | min(len(data), 126)])
            length = struct.pack(">H", len(data)) if len(data) >= 126 else b""
            with contextlib.suppress(OSError):
                raw.sendall(head + length + b"\0\0\0\0" + data)
    finally:
        client.close(timeout=1)
    other = server.open(RIGHT)
    try:
        assert isinstance(json.loads(other.recv()), dict)
    finally:
        other.close(timeout=1)


entries = st.fixed_dictionaries(
    {},
    optional={
        "version": st.just(1) | json_values,
        "name": json_values,
        "state": st.sampled_from(("ready", "running")) | json_values,
        "message": json_values,
        "ranks": st.integers(0, 9) | json_values,
        "vms": st.lists(texts) | json_values,
        "keep_s": st.floats() | json_values,
        "kernel_id": texts | json_values,
    },
)


@one_in(3)
@given(st.lists(entries, min_size=1, max_size=3))
@example([{"version": 1, "name": "a", "state": "ready", "ranks": 2, "vms": [],
           "keep_s": float("nan"), "kernel_id": "\x1b[2J"}])  # fmt: skip
def test_any_entries_of_clusters(server, entries_):
    """What another process of the user has left is listed in valid JSON, or left out."""
    folder = jupyter_folder(str(server.folder / "runtime")) / CLUSTERS_FOLDER
    registry = ProcessRegistry(folder)
    for number in range(3):
        registry.unregister(str(number))
    for number, entry in enumerate(entries_):
        registry.register(str(number), entry)
    answer = server.ask("workbench/api/clusters", headers=RIGHT)
    assert answer.status == 200
    assert controls(answer.body.decode()) == set()

    def refuse(text):
        raise AssertionError(f"{text} is not JSON")

    plain = json.loads(answer.body, parse_constant=refuse)
    assert controls(json.dumps(plain, ensure_ascii=False)) == set()
