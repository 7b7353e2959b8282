"""Prometheus: from the kernels' timings to the Jupyter server's `/metrics`."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from recorded import PHASES_MS, SIZES
from timers import eventually
from tornado.httpclient import HTTPClientError

from server.jupyter_fixtures import *  # noqa: F403
from workbench.resources.process_registry import FOLDER, ProcessRegistry
from workbench.server import hardware_metrics
from workbench.server.metrics import MAX_CLUSTERS, TimingsCollector
from workbench.timings import Timings

PREFIX = "gradient_workbench_"
LABELS = ("cluster", "rank", "vm", "phase")
KERNEL = """
import sys
from recorded import *
timings = Timings()
timings.listen()
timings.describe(sys.argv[1], {0: "vm1", 1: "vm2"})
timings.begin_cell(1)
for rank in (0, 1):
    outbox = Outbox(timings.address_for(rank))
    for index in range(20):
        record = iteration_record(index, rank, RankClock()).pack()
        outbox.send(Records((record,)))
    outbox.flush()
timings.end_cell(1, {0: 20, 1: 20}, timeout_s=45)
print("posted", flush=True)
sys.stdin.readline()
timings.close()
sys.stdin.readline()
"""


class Kernel:
    """A kernel's process, which has trained and stays."""

    def __init__(self, name):
        tests = Path(__file__).parents[1]
        paths = [str(tests / "support"), str(tests.parent), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-c", KERNEL, name],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "posted\n"

    def close_timings(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start_kernel():
    started = []

    def start(name):
        started.append(Kernel(name))
        return started[-1]

    yield start
    for kernel in started:
        kernel.kill()


def values(text):
    """The samples of ours in what a scrape gave, by name and labels."""
    return {
        (sample.name.removeprefix(PREFIX), *map(sample.labels.get, LABELS)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(PREFIX) and "cluster" in sample.labels
    }


def scrape(registry):
    collectors = CollectorRegistry()
    collectors.register(TimingsCollector(registry))
    return values(generate_latest(collectors).decode())


# From a kernel to the server


@pytest.fixture
def metrics(jp_serverapp, jp_asyncio_loop, jp_fetch, monkeypatch):
    """Ask the server for its metrics."""

    async def ask(options):
        async with asyncio.timeout(30):
            return await jp_fetch("metrics", **options)

    def get(**options):
        return jp_asyncio_loop.run_until_complete(ask(options)).body.decode()

    yield get
    hardware_metrics.release()


@pytest.fixture
def jp_server_config():
    return {"ServerApp": {"jpserver_extensions": {"workbench": True}}}


def test_a_scrape_has_every_rank(metrics, start_kernel):
    """The time of a kernel's ranks is on the server's own /metrics, by cluster, rank and VM."""
    start_kernel("local-ab12")

    def whole():
        now = values(metrics())
        return now if [now[key] for key in now if key[0] == "iterations_total"] == [20, 20] else {}

    found = eventually(whole)
    assert found

    iteration_s = sum(PHASES_MS.values()) / 1e3
    bits = pytest.approx(sum(SIZES) * 8 / 0.011)
    for place in (("0", "vm1"), ("1", "vm2")):
        labels = ("local-ab12", *place)
        own = {(key[0], key[4]): value for key, value in found.items() if key[1:4] == labels}
        for phase, took_ms in PHASES_MS.items():
            assert own.pop(("phase_seconds_total", phase)) == pytest.approx(20 * took_ms / 1e3)
        assert {name: value for (name, _), value in own.items()} == {
            "iterations_total": 20,
            "bytes_total": 20 * sum(SIZES),
            "communication_seconds_total": pytest.approx(20 * 0.011),
            "dropped_records_total": 0,
            "iteration": 19,
            "iteration_seconds": pytest.approx(iteration_s),
            "exposed_ratio": pytest.approx(0.004 / iteration_s),
            "algorithm_bandwidth_bits_per_second": bits,
            "bus_bandwidth_bits_per_second": bits,  # 2(n-1)/n is 1 for two ranks
        }


@pytest.mark.parametrize("token", ["", "token wrong"])
def test_no_metrics_without_the_token(metrics, token):
    """The server's own authentication also applies to our metrics."""
    with pytest.raises(HTTPClientError) as caught:
        metrics(headers={"Authorization": token})
    assert caught.value.code == 403


def test_the_metrics_of_others_stay(metrics):
    """Without a cluster there is no sample of one, and the server's own are all there."""
    text = metrics()
    assert values(text) == {}
    assert "http_request_duration_seconds" in text or "jupyter_server_info" in text


def test_a_stopped_cluster_vanishes(metrics, start_kernel):
    """When a cluster's timings close, its samples go, while its kernel lives on."""
    kernel = start_kernel("local-ab12")
    assert eventually(lambda: values(metrics()))
    kernel.close_timings()
    assert eventually(lambda: not values(metrics()))
    assert kernel.process.poll() is None


@pytest.mark.soak
def test_a_killed_kernel_vanishes(metrics, start_kernel):
    """The figures of a kernel that was killed are gone at the next scrape, and so is the file."""
    kernel = start_kernel("local-ab12")
    assert eventually(lambda: values(metrics()))
    kernel.kill()
    assert values(metrics()) == {}
    assert list((Path(os.environ["JUPYTER_RUNTIME_DIR"]) / FOLDER).iterdir()) == []


@pytest.mark.soak
def test_two_kernels_are_distinguished(metrics, start_kernel):
    """Each cluster has its own samples."""
    start_kernel("local-ab12")
    start_kernel("ssh-cd34")
    both = {"local-ab12", "ssh-cd34"}
    assert eventually(lambda: {key[1] for key in values(metrics())} == both)


# The process registry


def test_only_the_owner_reads_an_entry(tmp_path):
    """Folder and file are the owner's alone, and nothing half-written is left."""
    folder = tmp_path / "registry"
    registry = ProcessRegistry(folder)
    registry.register("one", {"x": 1})
    registry.register("one", {"x": 2})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert registry.read() == [{"x": 2}]
    registry.unregister("one")
    assert registry.read() == []


def test_invalid_entries_are_skipped(tmp_path):
    """Broken, foreign and cut files do not hide the good one."""
    registry = ProcessRegistry(tmp_path)
    registry.register("good", {"x": 1})
    good = next(tmp_path.iterdir()).read_text()
    for name, text in (("a", ""), ("b", "[1]"), ("c", '{"signed": 5}'), ("d", good[:-9])):
        (tmp_path / f"{name}.json").write_text(text)
    elsewhere = json.loads(good)
    elsewhere["signed"]["namespace"] = "another machine"
    (tmp_path / "e.json").write_text(json.dumps(elsewhere))
    assert registry.read() == [{"x": 1}]
    assert (tmp_path / "e.json").exists()  # its process may still run there


def test_a_process_id_that_was_used_again_is_another_process(tmp_path):
    """An entry whose process ended is gone, although its id was reused."""
    registry = ProcessRegistry(tmp_path)
    registry.register("old", {"x": 1})
    path = next(tmp_path.iterdir())
    entry = json.loads(path.read_text())
    entry["signed"]["started_s"] = 1.0
    path.write_text(json.dumps(entry))
    assert registry.read() == []
    assert not path.exists()


def rank(number, **more):
    return {"rank": number, "vm": "vm1", "iterations": 1, "seconds": {"data": 1.0}, **more}


def test_labels_are_bounded(tmp_path):
    """Many clusters, long names and repeated ranks do not grow a scrape without end."""
    registry = ProcessRegistry(tmp_path)
    for at in range(MAX_CLUSTERS + 5):
        entry = {
            "version": 1,
            "cluster": f"c{at}",
            "time_s": at + 1.0,
            "ranks": [rank(0), rank(0)],
        }
        registry.register(f"c{at}", entry)
    found = scrape(registry)
    assert {key[1] for key in found} == {f"c{at}" for at in range(5, MAX_CLUSTERS + 5)}
    registry.register(
        "long", {"version": 1, "cluster": "x" * 999, "time_s": 99.0, "ranks": [rank(0)]}
    )
    assert all(len(label) <= 100 for key in scrape(registry) for label in key if label)


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"version": 2, "cluster": "a", "time_s": 1.0, "ranks": [rank(0)]},
        {"version": 1, "cluster": "a", "time_s": "soon", "ranks": [rank(0)]},
        {"version": 1, "cluster": "a", "time_s": 1.0, "ranks": 5},
        {"version": 1, "cluster": "a", "time_s": 1.0, "ranks": [7, {"rank": "x"}]},
    ],
)
def test_a_notice_of_another_form_breaks_no_scrape(tmp_path, entry):
    """It is left out."""
    registry = ProcessRegistry(tmp_path)
    registry.register("a", entry)
    assert scrape(registry) == {}


def test_what_is_not_known_has_no_sample(tmp_path):
    """A rank without communication has no bandwidth, rather than one of zero."""
    registry = ProcessRegistry(tmp_path)
    latest = {"iteration": 3, "iteration_s": 0.1, "exposed_share": 0.0, "busbw_gbps": None}
    entry = {"version": 1, "cluster": "a", "time_s": 1.0, "ranks": [rank(0, latest=latest)]}
    registry.register("a", entry)
    names = {key[0] for key in scrape(registry)}
    assert "iteration_seconds" in names
    assert "bus_bandwidth_bits_per_second" not in names


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch, caplog):
    """Timings continue, and one line says why the metrics are missing."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "file" / "below"))
    timings = Timings()
    timings.listen()
    timings.describe("local-ab12", {0: "vm1"})
    timings.begin_cell(1)
    assert eventually(lambda: "not in the server's /metrics" in caplog.text)
    assert timings.end_cell(1, {}) is True
    timings.close()
