"""Files that a client sends to be shown: snapshots, topology files, and all else."""

from __future__ import annotations

import json
import socket

import pytest
from nvml_machines import bridged_a100, hgx_h100
from timers import eventually

from workbench.doctor import diagnose
from workbench.resources import Snapshot, take_snapshot
from workbench.resources.codec import encode
from workbench.server.handlers import MAX_BYTES

TOPOLOGY = """<system version="1"><cpu numaid="0" affinity="ff" arch="x86_64">
<pci busid="0000:10:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
<pci busid="0000:11:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
<pci busid="0000:12:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/>
</pci></cpu></system>"""
ENTITIES = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
BOMB = f'<?xml version="1.0"?><!DOCTYPE system [<!ENTITY e0 "ha">{ENTITIES}]>'
OUTSIDE = '<?xml version="1.0"?><!DOCTYPE system [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
MANY = "".join(
    f'<pci busid="0000:{n >> 5:02x}:{n & 31:02x}.0" class="0x030000"/>' for n in range(2000)
)


@pytest.fixture(scope="module")
def server(start):
    return start()


@pytest.fixture
def send(server, right):
    """Send a file; the status and the answer."""

    def post(body, name="given.xml"):
        body = body.encode() if isinstance(body, str) else body
        answer = server.ask(f"workbench/api/read?name={name}", "POST", body, right)
        return answer.status, answer.json()

    return post


def test_a_topology_file(send):
    """Gives the snapshot that the file describes, under the name it was sent with."""
    status, answer = send(TOPOLOGY, "azure%20topo.xml")
    assert status == 200
    assert answer["name"] == "azure topo.xml"
    snapshot = Snapshot.from_plain(answer["snapshot"])
    assert [gpu.pci_address for gpu in snapshot.gpus] == ["0000:11:00.0"]
    assert [one.distance for one in snapshot.pcie.distances] == ["PIX"]
    assert snapshot.pcie.topology_file == "azure topo.xml"
    assert isinstance(answer["findings"], list)


def test_a_snapshot(send):
    """Comes back as it was, with what the doctor finds in it."""
    sent = take_snapshot(nvml=bridged_a100())
    status, answer = send(sent.to_json(), "vm3.json")
    assert status == 200
    assert Snapshot.from_plain(answer["snapshot"]) == Snapshot.from_json(sent.to_json())
    assert answer["findings"] == encode(diagnose(sent))
    assert "bridged_pairs" in [finding["rule"] for finding in answer["findings"]]
    assert send("\ufeff" + sent.to_json())[0] == 200  # a Windows editor's mark


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "neither a snapshot"),
        ("hello", "neither a snapshot"),
        (b"\x00\xff\xfe\x80", "neither a snapshot"),
        ("{", "not complete JSON"),
        ("[]", "not a snapshot"),
        ('{"a": 1}', "not a snapshot"),
        ('{"version": 99}', "version 99"),
        ('{"version": 2}', "missing"),
        (b'{"\xff": 1}', "not in UTF-8"),
        ("[" * 200_000, "not complete JSON"),
        ('{"version": ' + "9" * 10_000 + "}", "not complete JSON"),
        ("<html>", "<html> where a topology file has <system>"),
        ("<system", "not complete XML"),
        (TOPOLOGY[:200], "not complete XML"),
        ('<?xml version="1.0" encoding="hex"?><system/>', "not complete XML"),
        ('<system version="9"/>', "version '9'"),
        ('<system version="1"/>', "no pci element"),
        (f"{BOMB}<system>&e11;</system>", "a document type"),
        (f"{OUTSIDE}<system>&x;</system>", "a document type"),
        ('<system version="1">' + "<cpu>" * 500, "nested elements"),
        (f'<system version="1"><cpu numaid="0">{MANY}</cpu></system>', "2000 GPUs and NICs"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_cannot_be_read_is_refused_with_the_reason(send, body, why):
    """Entity bombs, depth, sizes and foreign files are the sender's, not the server's, problem."""
    status, answer = send(body, "given")
    assert status == 400
    assert why in answer["message"]
    assert answer["message"].startswith("given")
    assert answer["reason"] == answer["message"]
    assert len(answer["message"]) < 1000


def test_a_message_keeps_its_percent_signs(send):
    """The name of the file does not matter."""
    assert send("hello", "100%25%25s")[1]["message"].startswith("100%%s is neither")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_number_that_is_not_finite(send, number):
    """No browser could read the answer."""
    plain = {**take_snapshot(nvml=hgx_h100()).to_plain(), "taken_at": "?"}
    status, answer = send(json.dumps(plain).replace('"?"', number))
    assert status == 400
    assert "not finite" in answer["message"]


def test_an_edited_snapshot_without_a_part(send):
    """It is refused, and is no failure of the doctor."""
    plain = take_snapshot(nvml=hgx_h100()).to_plain()
    plain["probes"] = {}
    status, answer = send(json.dumps(plain))
    assert status == 400
    assert "probes.host is missing" in answer["message"]


def test_too_large(send, server, right):
    """More than 4 MiB is refused, with or without its length in advance; 4 MiB are read."""
    assert send(b" " * MAX_BYTES)[0] == 400
    status, answer = send(b" " * (MAX_BYTES + 1), "big")
    assert status == 413
    assert answer["message"] == "big is too large: at most 4 MiB are read"
    parts = [b" " * (1 << 20)] * 5
    assert server.ask("workbench/api/read", "POST", iter(parts), right).status == 413
    assert server.ask("workbench/api/read", "POST", iter(parts[:3]), right).status == 400


def test_nothing_of_this_machine_is_opened(send):
    """The name is a word for messages, wherever it points."""
    status, answer = send("hello", "/etc/passwd")
    assert status == 400
    assert "root:" not in answer["message"]


def test_a_sender_who_leaves_half_way(server, send):
    """It delays nothing."""
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port)) as half:
            half.sendall(
                b"POST /user/alice/workbench/api/read HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Content-Length: 3000000\r\n\r\n<system"
            )
    assert eventually(lambda: send(TOPOLOGY)[0] == 200)


def test_what_is_sent_stays_out_of_the_log(server, send):
    """A file may contain names of hosts."""
    send('{"version": "secret-host-17"}')
    assert "secret-host-17" not in server.log.read_text()
