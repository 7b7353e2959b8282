"""rest-api.yml against what a real server answers."""

from __future__ import annotations

import json

import pytest
import websocket

from workbench.resources import take_snapshot

from .specification import SPEC, validate, validate_answer
from .test_reading import TOPOLOGY

GET, POST = ("/snapshot", "get"), ("/read", "post")
CLUSTERS, CLUSTER = ("/clusters", "get"), ("/clusters/{name}", "delete")
LIVE, FINDINGS = ("/live", "get"), ("/findings", "get")
SNAPSHOT = take_snapshot().to_json()


@pytest.fixture(scope="module")
def server(start):
    return start()


@pytest.fixture(scope="module")
def cookie(server):
    return {"Cookie": server.cookies()[0]}


CASES = [
    (GET, 200, "right", None),
    (GET, 403, "nobody", None),
    (GET, 404, "elsewhere", None),
    (FINDINGS, 200, "right", None),
    (FINDINGS, 403, "nobody", None),
    (FINDINGS, 404, "elsewhere", None),
    (POST, 200, "right", TOPOLOGY),
    (POST, 200, "right", SNAPSHOT),
    (POST, 400, "right", "hello"),
    (POST, 403, "nobody", TOPOLOGY),
    (POST, 403, "cookie", TOPOLOGY),
    (POST, 404, "elsewhere", TOPOLOGY),
    (POST, 413, "right", " " * (5 << 20)),
    (CLUSTERS, 200, "right", None),
    (CLUSTERS, 403, "nobody", None),
    (CLUSTERS, 404, "elsewhere", None),
    (CLUSTER, 403, "cookie", None),
    (CLUSTER, 404, "right", None),
    (LIVE, 400, "right", None),
    (LIVE, 403, "nobody", None),
]


@pytest.mark.parametrize(("route", "status", "who", "body"), CASES, ids=lambda x: str(x)[:20])
def test_an_answer_is_as_described(server, right, cookie, route, status, who, body):
    """Good ones and refusals."""
    elsewhere = {**cookie, "Origin": "https://elsewhere.example"}
    headers = {"right": right, "nobody": {}, "cookie": cookie, "elsewhere": elsewhere}[who]
    path, method = route
    answer = server.ask(f"workbench/api{path}", method.upper(), body, headers)
    assert answer.status == status
    validate_answer(path, method, answer.status, answer.headers, answer.body)


def test_every_answer_that_is_described_was_seen():
    """The cases above leave out only the WebSocket itself, and what needs a real cluster."""
    told = {
        ((path, method), int(status))
        for path, methods in SPEC["paths"].items()
        for method, one in methods.items()
        for status in one["responses"]
    }
    elsewhere = {(LIVE, 101), (CLUSTER, 204), (CLUSTER, 409)}  # the last two: test_clusters.py
    elsewhere |= {(("/runs/{name}/files/{file}", "get"), code) for code in (200, 403, 404)}
    # these: test_run_files.py
    assert told - elsewhere == {case[:2] for case in CASES}


def test_the_socket_is_as_described(server, right):
    """Each message of it."""
    socket = server.open(right)
    for _ in range(2):
        validate(json.loads(socket.recv()), "Sample")
    socket.close()


def test_a_sample_with_everything_is_as_described(allowed, right):
    """GPUs, RDMA and processes too, known or not."""
    socket = allowed.open(right)
    message = json.loads(socket.recv())
    socket.close()
    assert message["gpus"]
    assert message["processes"]
    validate(message, "Sample")


def test_a_refused_socket_is_as_described(server, cookie):
    """As JSON."""
    for headers in ({}, {**cookie, "Origin": "https://elsewhere.example"}):
        with pytest.raises(websocket.WebSocketBadStatusException) as caught:
            server.open(headers)
        error = caught.value
        kind = {"Content-Type": error.resp_headers["content-type"]}
        validate_answer("/live", "get", error.status_code, kind, error.resp_body)
