"""The server extension: what it serves, to whom, and when it sleeps."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
from fake_nvml import FakeNvml
from nvml_machines import bridged_a100, hgx_h100, v100d_8c_guest
from timers import FAR_S
from tornado.httpclient import HTTPClientError

from server.jupyter_fixtures import *  # noqa: F403
from server.specification import SPEC, validate
from workbench.doctor import Finding
from workbench.resources import (
    Ecc,
    Fabric,
    Gid,
    Gpu,
    GpuClocks,
    GpuDirect,
    GpuPair,
    HostInfo,
    Licence,
    Nic,
    NvLink,
    NvLinks,
    PairDistance,
    PciDevice,
    Pcie,
    PcieLink,
    PciRoot,
    PciTree,
    Probe,
    Snapshot,
    VgpuProfile,
    take_snapshot,
)
from workbench.resources.pcie.records import TopologyNvlink
from workbench.resources.usage import GpuShare, GpuUse, NicUse, ProcessUse
from workbench.server.feed import LiveFeed

API = ("workbench", "api")


class Client:
    """A browser: speaks to a real server on this machine, one call after another."""

    def __init__(self, loop, fetch, ws_fetch):
        self._loop, self._fetch, self._ws_fetch = loop, fetch, ws_fetch

    def wait(self, awaitable):
        return self._loop.run_until_complete(asyncio.wait_for(awaitable, FAR_S))

    def get(self, name, **options):
        return self.wait(self._fetch(*API, name, **options))

    def json(self, name):
        return json.loads(self.get(name).body)

    def open(self, name="live", **options):
        return self.wait(self._ws_fetch(*API, name, **options))

    def read(self, socket):
        return json.loads(self.wait(socket.read_message()))

    def close(self, socket):
        """Close, and wait until the server has noticed."""
        socket.close()
        while self.wait(socket.read_message()) is not None:
            pass  # a message that came before the close


@pytest.fixture
def jp_server_config():
    return {
        "ServerApp": {"jpserver_extensions": {"workbench": True}},
        "IdentityProvider": {"cookie_name": "workbench-test"},
    }


@pytest.fixture
def client(jp_asyncio_loop, jp_fetch, jp_ws_fetch):
    return Client(jp_asyncio_loop, jp_fetch, jp_ws_fetch)


@pytest.fixture(autouse=True)
def asleep_before():
    """Every test starts without a sampler: one that is on its way out is waited for."""
    for thread in samplers():
        thread.join(60)
    assert samplers() == []


def samplers():
    return [x for x in threading.enumerate() if x.name == "workbench-sampler"]


def wait_for_sleep(client):
    """Let the server notice that its clients left; the sampler's thread then ends."""
    for _ in range(10_000):
        if not samplers():
            return
        client.wait(asyncio.sleep(0.01))
    pytest.fail(f"the sampler still runs: {samplers()}")


# What is served


def test_snapshot(client, jp_base_url):
    """The snapshot is this VM's, as rest-api.yml describes it; the base URL is not plain."""
    assert jp_base_url != "/"
    response = client.get("snapshot")
    assert response.headers["Content-Type"].startswith("application/json")
    plain = json.loads(response.body)
    validate(plain, "Snapshot")
    snapshot = Snapshot.from_json(response.body.decode())
    assert snapshot.host.hostname == Path("/proc/sys/kernel/hostname").read_text().strip()


def test_snapshots_are_shared(client):
    """Requests that come close together get the same snapshot."""
    assert client.json("snapshot") == client.json("snapshot")


def test_findings(client):
    """The findings come as a list, each as rest-api.yml describes it."""
    findings = client.json("findings")["findings"]
    assert isinstance(findings, list)
    for finding in findings:
        validate(finding, "Finding")


def test_live(client):
    """A message comes at once, without rates; the next one has them."""
    socket = client.open()
    first, second = client.read(socket), client.read(socket)
    client.close(socket)
    for message in (first, second):
        validate(message, "Sample")
    assert first["cpu"]["percent"] == {"unknown": "needs two samples"}
    assert 0 <= second["cpu"]["percent"] <= 100
    assert second["time"] > first["time"]
    assert first["interval_s"] == 1.0
    wait_for_sleep(client)


def test_what_a_client_says_is_ignored(client):
    """The socket only sends: whatever it receives changes nothing."""
    socket = client.open()
    client.read(socket)
    client.wait(socket.write_message("{not json"))
    validate(client.read(socket), "Sample")
    client.close(socket)
    wait_for_sleep(client)


RECORDS = [HostInfo, Gpu, Nic, Gid, Probe, Finding, GpuUse, NicUse]
RECORDS += [ProcessUse, GpuShare]
RECORDS += [VgpuProfile, Licence, Ecc, GpuClocks, PcieLink, NvLinks, NvLink, Fabric, GpuPair]
RECORDS += [Pcie, PciTree, PciRoot, PciDevice, TopologyNvlink, PairDistance, GpuDirect]


@pytest.mark.parametrize("record", RECORDS)
def test_the_specification_names_every_value(record):
    """rest-api.yml lists the values of each record, all of them required."""
    schema = SPEC["components"]["schemas"][record.__name__]
    names = {field.name for field in fields(record)}
    assert set(schema["properties"]) == names
    assert set(schema["required"]) == names


@pytest.mark.parametrize("build", [hgx_h100, bridged_a100, v100d_8c_guest, FakeNvml])
def test_the_specification_fits_machines_with_gpus(build):
    """Known and unknown values of GPUs are both as rest-api.yml has them."""
    validate(take_snapshot(nvml=build()).to_plain(), "Snapshot")


# To whom


@pytest.mark.parametrize("name", ["snapshot", "findings"])
@pytest.mark.parametrize("token", ["", "token wrong"])
def test_no_content_without_the_token(client, name, token):
    """Without a token, or with a wrong one, there is nothing to see."""
    with pytest.raises(HTTPClientError) as caught:
        client.get(name, headers={"Authorization": token})
    assert caught.value.code == 403


@pytest.mark.parametrize("token", ["", "token wrong"])
def test_no_socket_without_the_token(client, token):
    """Nor a WebSocket; and the sampler is not woken."""
    with pytest.raises(HTTPClientError) as caught:
        client.open(headers={"Authorization": token})
    assert caught.value.code == 403
    assert samplers() == []


def test_no_socket_across_origins(client, jp_http_port):
    """A page of another origin gets no WebSocket by the cookie that the browser adds."""
    cookie = client.get("snapshot").headers["Set-Cookie"].split(";")[0]
    assert cookie.startswith("workbench-test=")
    browser = {"Authorization": "", "Cookie": cookie}
    with pytest.raises(HTTPClientError) as caught:
        client.open(headers={**browser, "Origin": "https://elsewhere.example"})
    assert caught.value.code == 403
    assert samplers() == []
    own = client.open(headers={**browser, "Origin": f"http://localhost:{jp_http_port}"})
    validate(client.read(own), "Sample")
    client.close(own)
    wait_for_sleep(client)


@pytest.mark.parametrize("name", ["snapshot", "findings", "live"])
def test_a_user_without_the_permission(client, jp_serverapp, name):
    """The server's authoriser decides: who may not read `workbench` is refused."""
    asked = []

    def refuse(handler, user, action, resource):
        asked.append((action, resource))
        return False

    jp_serverapp.authorizer.is_authorized = refuse
    with pytest.raises(HTTPClientError) as caught:
        client.open() if name == "live" else client.get(name)
    assert caught.value.code == 403
    assert asked == [("read", "workbench")]
    assert samplers() == []


def test_nothing_outside_the_base_url(client, http_server_client, jp_auth_header):
    """The routes are behind the server's base URL only."""
    request = http_server_client.fetch("/workbench/api/snapshot", headers=jp_auth_header)
    with pytest.raises(HTTPClientError) as caught:
        client.wait(request)
    assert caught.value.code == 404


# When it sleeps


def test_asleep_without_clients(client):
    """The extension runs no sampler before the first client comes; REST wakes none."""
    client.get("snapshot")
    assert samplers() == []


def test_twenty_clients_share_one_sampler(client):
    """All clients get the same messages from one thread, which ends after the last one."""
    sockets = [client.open() for _ in range(20)]
    assert len(samplers()) == 1
    late = client.read(sockets[-1])["time"]
    messages = []
    for socket in sockets:
        message = client.read(socket)
        while message["time"] <= late:  # the ones that came before all were there
            message = client.read(socket)
        messages.append(message)
    assert all(message == messages[0] for message in messages)
    for socket in sockets[1:]:
        client.close(socket)
    client.read(sockets[0])
    assert len(samplers()) == 1
    client.close(sockets[0])
    wait_for_sleep(client)


@pytest.fixture
def rare_samples(monkeypatch):
    """The server takes a sample each minute."""
    monkeypatch.setattr("workbench.server.app.LiveFeed", partial(LiveFeed, interval_s=60.0))


@pytest.mark.usefixtures("rare_samples")
def test_second_client_does_not_wait(client):
    """Who comes later gets the last message at once, not the next one."""
    first = client.open()
    message = client.read(first)
    second = client.open()
    assert client.read(second) == message
    for socket in (first, second):
        client.close(socket)
    wait_for_sleep(client)


def test_wakes_again(client):
    """After a pause, a new client starts a new sampler, whose rates start again."""
    for _ in range(2):
        socket = client.open()
        assert client.read(socket)["cpu"]["percent"] == {"unknown": "needs two samples"}
        client.close(socket)
        wait_for_sleep(client)
