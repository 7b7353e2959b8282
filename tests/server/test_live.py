"""The live feed of a real server: many clients, slow ones, and whose notebook a kernel is."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
import websocket
from timers import InThread, eventually

from .counting_extension import HANGS_S, NO_KERNEL
from .process import BASE, TOKEN

CLIENTS = 20


class Client:
    """A browser's socket that keeps what it hears, and when."""

    def __init__(self, server, right, key=lambda message: (message["sampler"], message["taken"])):
        self._key = key
        self.socket = server.open(right)
        self._heard = {}
        self._thread = InThread(self._listen)

    def _listen(self):
        try:
            while text := self.socket.recv():
                message = json.loads(text)
                self._heard[self._key(message)] = time.monotonic(), message
        except (OSError, websocket.WebSocketException, AttributeError):
            return  # closed, here or there

    @property
    def heard(self):
        """A copy of what it has heard so far, since its thread goes on."""
        return dict(self._heard)

    def last(self):
        heard = self.heard
        return heard[max(heard)][1]

    def leave(self):
        self.socket.close()
        self._thread.join()


@pytest.fixture
def join(allowed, right):
    """Open clients; all have left after the test, and the sampler has ended."""
    clients = []

    def begin():
        clients.append(Client(allowed, right))
        return clients[-1]

    yield begin
    for one in clients:
        one.leave()


def deaf(server):
    """A client whose socket takes a few kB and that never reads."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    one.connect(("127.0.0.1", server.port))
    one.sendall(
        f"GET {BASE}workbench/api/live?token={TOKEN} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    return one


def test_twenty_clients_and_one_sampler(join):
    """All hear the same samples of one sampler, together; it ends after the last has left."""
    clients = [join() for _ in range(CLIENTS)]

    def shared(messages):
        """The keys of the messages that all clients have, without the one that the last got."""
        first = max(map(min, messages))
        return set.intersection(*map(set, messages)) - {first}

    def enough():
        messages = [one.heard for one in clients]
        has_enough = all(len(heard) >= 4 for heard in messages) and len(shared(messages)) >= 2
        return messages if has_enough else None

    messages = eventually(enough)
    assert messages
    (sampler,) = {key[0] for heard in messages for key in heard}
    for key in shared(messages):
        assert len({json.dumps(heard[key][1]) for heard in messages}) == 1
    numbers = sorted(key[1] for key in messages[0])
    assert numbers == list(range(numbers[0], numbers[-1] + 1))  # nobody else took one between
    for one in clients:
        one.leave()
    late = join()
    assert eventually(lambda: late.heard)
    assert min(late.heard) == (sampler + 1, 1)  # the earlier one had ended, so this is a new one


@pytest.mark.soak
def test_clients_that_never_read_delay_nobody(start, right):
    """The others hear every sample, and the server keeps no pile for those who do not."""
    letters = 1 << 20
    server = start(extension="server.counting_extension", environment={"PADDING": str(letters)})
    client = Client(server, right)
    assert eventually(lambda: len(client.heard) >= 2)
    before = resident_bytes(server)
    mute = [deaf(server) for _ in range(4)]
    already = len(client.heard)
    assert eventually(lambda: len(client.heard) >= already + 12)
    grown = resident_bytes(server) - before
    client.leave()
    for one in mute:
        one.close()
    assert grown < 4 * 12 * letters / 2
    numbers = sorted(client.heard)
    assert [key[1] for key in numbers] == list(range(numbers[0][1], numbers[-1][1] + 1))


def resident_bytes(server):
    """Memory of the server's process."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * 4096


def test_clients_that_vanish_are_let_go(join, allowed, right):
    """Without a word; the sampler ends with them."""
    first = join()
    assert eventually(lambda: first.heard)
    mute = deaf(allowed)
    first.leave()
    mute.close()

    def anew():
        probe = join()
        assert eventually(lambda: probe.heard)
        probe.leave()
        return min(probe.heard)[1] == 1

    assert eventually(anew)


# Notebooks


def kernels(client):
    """Return the notebook of each kernel in the last message."""
    return {one["kernel_id"]: one["notebook"] for one in client.last()["processes"][1:]}


def test_a_kernel_has_its_notebook(join, open_session):
    """By its session, also after the notebook was renamed; a console has none."""
    study = open_session("work/study.ipynb")
    console = open_session("console-1", "console")
    client = join()
    told = {study["kernel"]["id"]: "work/study.ipynb", console["kernel"]["id"]: None}
    assert eventually(lambda: client.heard and kernels(client) == told)
    assert client.last()["processes"][0] == NO_KERNEL
    open_session.rename(study, "work/renamed.ipynb")
    told[study["kernel"]["id"]] = "work/renamed.ipynb"
    assert eventually(lambda: kernels(client) == told)


def test_notebooks_are_for_those_who_may_list_sessions(join, open_session, allowed):
    """Users who may only read the hardware get kernels without a path; others still get it."""
    study = open_session("private/salaries.ipynb")
    allowed.refuse("read sessions")
    stranger = join()
    assert eventually(lambda: stranger.heard and kernels(stranger))
    allowed.refuse()
    owner = join()
    assert eventually(lambda: owner.heard and "private/salaries.ipynb" in kernels(owner).values())
    heard = len(stranger.heard)
    assert eventually(lambda: len(stranger.heard) > heard + 1)
    assert set(kernels(stranger)) >= {study["kernel"]["id"]}
    assert "salaries" not in json.dumps([message for _, message in stranger.heard.values()])


def test_the_sampler_of_this_machine_finds_the_notebook(start, right):
    """From the kernel's process to its path, with nothing made up between."""
    server = start()
    about = {"path": "real.ipynb", "type": "notebook", "name": "", "kernel": {"name": "python3"}}
    answer = server.ask("api/sessions", "POST", json.dumps(about), right)
    assert answer.status == 201
    kernel = answer.json()["kernel"]["id"]
    client = Client(server, right, key=lambda message: message["time"])

    def found():
        here = client.last()["processes"] if client.heard else []
        mine = [one for one in here if one["kernel_id"] == kernel and one["kind"] == "kernel"]
        # it is listed as soon as it exists, before it has loaded anything
        return [one for one in mine if one["memory_bytes"] > 10 << 20]

    (one,) = eventually(found)
    client.leave()
    assert one["notebook"] == "real.ipynb"


# A driver that hangs


def test_a_hanging_driver_is_a_reason_and_no_error(allowed, right):
    """The snapshot comes with what hangs named; meanwhile the server answers others."""
    asking = InThread(allowed.ask, "workbench/api/snapshot", headers=right)
    assert allowed.ask("api/status", headers=right).status == 200
    assert asking.is_alive()  # the other answer came first
    answer = asking.join()
    assert answer.status == 200
    probe = answer.json()["probes"]["gpus"]
    assert probe["status"] == "failed"
    assert f"did not answer within {HANGS_S:g} s" in probe["reason"]
    answer = allowed.ask("workbench/api/findings", headers=right)
    assert answer.status == 200
    assert "has not returned" in json.dumps(answer.json())


def test_findings_about_what_is_used_now(start, right):
    """An allocated and idle GPU is found while a client is connected, by the same sampler."""
    server = start(extension="server.counting_extension", environment={"IDLE_S": "3600"})

    def rules():
        answer = server.ask("workbench/api/findings", headers=right)
        return [finding["rule"] for finding in answer.json()["findings"]]

    assert "gpu_idle" not in rules()
    client = Client(server, right)
    assert eventually(lambda: client.heard)
    assert "gpu_idle" in rules()
    client.leave()


def test_metrics_come_from_the_sampler_that_the_clients_have(join, allowed, right):
    """A scrape adds no sampler, and does not ask the driver that hangs."""
    client = join()
    assert eventually(lambda: client.heard)

    def scraped():
        text = allowed.ask("metrics", headers=right).body.decode()
        return "gradient_workbench_gpu_utilization_ratio{" in text

    assert eventually(scraped)
    assert len({key[0] for key in client.heard}) == 1
