"""Requests, notices and messages of any content: one answer each, never a 500, never a wait."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hostile import RAW, TEXTS, controls, mutated_bytes, mutated_json
from large_snapshots import large
from prometheus_client import CollectorRegistry, generate_latest
from topology_files import azure_ndv4

from workbench.resources.process_registry import ProcessRegistry
from workbench.server.metrics import VERSION, TimingsCollector

FIXTURE = Path(__file__).parents[2] / "labextension/test/fixtures/a100-4c.json"


@pytest.fixture(scope="module")
def server(start):
    return start()


@pytest.fixture
def send(server, right):
    def post(body, query=""):
        body = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
        answer = server.ask(f"workbench/api/read{query}", "POST", body, right)
        return answer.status, answer.json()

    return post


def test_damaged_files(send):
    """A readable file is answered in JSON of finite numbers, any other with the reason."""
    plain, topology = json.loads(FIXTURE.read_text()), azure_ndv4().encode()
    bodies = [mutated_json(plain, seed) for seed in range(120)]
    bodies += [mutated_bytes(topology, seed) for seed in range(60)]
    found = set()
    for body in bodies:
        status, answer = send(body, "?name=given")
        assert status in {200, 400}, body[:200]
        words = [json.dumps(answer, ensure_ascii=False)]
        words += [answer["message"]] if status == 400 else []
        assert all(controls(text) == set() for text in words)
        found.add(status)
    assert found == {200, 400}


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: raw[:12])
def test_numbers_that_are_none(send, raw):
    status, answer = send(f'{{"version": 2, "taken_at": {raw}}}')
    assert status == 400
    assert len(answer["message"]) < 700


@pytest.mark.parametrize("item", ["[]", "{}", '{"a":[]}'])
def test_brackets(send, item):
    """They would hold the server's thread for half a second: they are counted, and not parsed."""
    body = "[" + ",".join([item] * (3_000_000 // (len(item) + 1))) + "]"
    status, answer = send(body)
    assert status == 400
    assert "more than 100,000 opening brackets" in answer["message"]


def test_more_gpus_than_any_host_has(send):
    """The answer names their number and the limit."""
    status, answer = send(json.dumps(large(600)), "?name=rack.json")
    assert status == 400
    assert "gpus: 600 entries. At most 256 are read." in answer["message"]
    assert answer["message"].startswith("rack.json")
    assert send(json.dumps(large(256)))[0] == 200


@pytest.mark.parametrize(
    "query",
    ["?name=%ff%fe", "?name=%00%1b[2J", "?name=" + "a" * 5_000, "?name", "?name=%ed%a0%80",
     "?name=a&name=b", "?%ff=%ff", "?name=%E2%80%AE"],
)  # fmt: skip
def test_queries(send, query):
    status, answer = send("hello", query)
    assert status == 400
    assert controls(answer["message"]) == set()


@pytest.mark.parametrize("route", ["snapshot", "findings", "live", "nothing", "read"])
def test_routes_with_what_they_do_not_take(server, right, route):
    """Other methods, bodies and queries have an answer of the 4xx kind, or are passed over."""
    for method, body in (("GET", None), ("POST", b"\xff" * 99), ("PUT", b"{"), ("DELETE", None)):
        answer = server.ask(f"workbench/api/{route}?x=%ff&%00", method, body, right)
        assert answer.status < 500, (route, method)


def test_notices_of_any_content(tmp_path):
    """The server's /metrics is answered whatever the process registry contains."""
    board = ProcessRegistry(tmp_path)
    numbers = [10**400, float("nan"), float("inf"), -1, True, "x", None, [], {}]
    for place, number in enumerate(numbers):
        rank = {"rank": 0, "vm": TEXTS[place], "iterations": number, "dropped": number,
                "seconds": {"forward": number, TEXTS[place]: 1.0}, "latest": number}  # fmt: skip
        notice = {"version": VERSION, "time_s": 1.0, "cluster": f"c{place}", "ranks": [rank]}
        board.register(f"n{place}", notice)
        board.register(f"t{place}", {**notice, "time_s": number, "ranks": number})
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "list.json").write_text("[]")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    registry = CollectorRegistry()
    registry.register(TimingsCollector(board))
    text = generate_latest(registry).decode()
    assert "gradient_workbench_iterations_total" in text
    assert "1e+400" not in text
    assert "NaN" not in text
