"""The Grafana dashboard of the documentation asks for what `/metrics` really gives."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from recorded import PHASES_MS, Outbox, RankClock, Records, iteration_record
from timers import FAR_S, eventually

from workbench.server.feed import LiveFeed
from workbench.server.hardware_metrics import HardwareCollector
from workbench.server.metrics import PREFIX, TimingsCollector
from workbench.timings import Timings

from .samplers import GPU, NIC, ScriptedSampler

FILE = Path(__file__).parents[2] / "docs" / "how-to" / "grafana-dashboard.json"
OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus adds to each sample."""
COLUMNS = 24
METRIC = re.compile(rf"({PREFIX}\w+)(?:\{{([^}}]*)\}})?")
LABEL = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
KNOWN = {"nvlink_rx_bytes_per_s": 7.0, "rdma_rx_bytes_per_s": 8.0}
"""What the scripted devices do not know, so that every metric has a sample."""


@pytest.fixture(scope="module")
def dashboard():
    return json.loads(FILE.read_text("utf-8"))


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """The values of each label of each sample that a scrape gives: two ranks, a GPU and a NIC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        timings = trained()
        gpu, nic = ({**device, **KNOWN} for device in (GPU, NIC))
        feed = LiveFeed(lambda: ScriptedSampler({"gpus": [gpu], "nics": [nic]}), interval_s=0.05)
        hardware = HardwareCollector(feed)
        registry = CollectorRegistry()
        registry.register(TimingsCollector())
        registry.register(hardware)

        def complete():
            found = samples(registry)
            names = f"{PREFIX}iterations_total", f"{PREFIX}nic_errors_total"
            return found if all(name in found for name in names) else None

        found = eventually(complete)
        hardware.close()
        timings.close()
    assert found
    return found


def trained():
    """Timings of a cluster of two ranks, as its kernel publishes them."""
    timings = Timings()
    timings.listen()
    timings.describe("local-ab12", {0: "vm1", 1: "vm2"})
    timings.begin_cell(1)
    for rank in (0, 1):
        outbox = Outbox(timings.address_for(rank))
        outbox.send(Records((iteration_record(0, rank, RankClock()).pack(),)))
        outbox.flush()
        outbox.close()
    timings.end_cell(1, {0: 1, 1: 1}, timeout_s=FAR_S)
    return timings


def samples(registry):
    found = defaultdict(lambda: defaultdict(set))
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = found[sample.name]
            for name, value in sample.labels.items():
                labels[name].add(value)
    return found


def charts(dashboard):
    """The panels that show data."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def targets(dashboard):
    """The queries of all panels."""
    return [target for panel in charts(dashboard) for target in panel["targets"]]


def variables(dashboard):
    return {one["name"]: one for one in dashboard["templating"]["list"]}


def test_each_query_asks_for_metrics_and_labels_that_exist(dashboard, metrics):
    """Names of metrics and labels, in selectors, groupings and legends, and fixed values."""
    for target in targets(dashboard):
        names = METRIC.findall(target["expr"])
        assert names, target["expr"]
        for name, selector in names:
            assert name in metrics, name
            existing = {*metrics[name], *OF_PROMETHEUS}
            for label, value in LABEL.findall(selector):
                assert label in existing, f"{name}: {label}"
                assert "$" in value or value in metrics[name][label], f"{name}: {value}"
        grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
        used = {label.strip() for group in grouped for label in group.split(",")}
        used |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        first = names[0][0]
        assert used <= {*metrics[first], *OF_PROMETHEUS}, f"{first}: {used}"


def test_its_variables_exist(dashboard, metrics):
    """Each is used, is defined before its use, and lists the values of a label that exists."""
    defined = variables(dashboard)
    used = set(re.findall(r"\$\{?([a-z]+)\}?", json.dumps(dashboard["panels"])))
    assert used == set(defined)
    known = set()
    for name, variable in defined.items():
        assert set(re.findall(r"\$\{?([a-z]+)", json.dumps(variable.get("query")))) <= known
        known.add(name)
        if variable["type"] == "query":
            query = variable["query"]["query"]
            (metric, _), label = METRIC.findall(query)[0], query.rpartition(", ")[2].rstrip(")")
            assert label in {*metrics[metric], *OF_PROMETHEUS}


def test_it_shows_every_phase_in_its_colour(dashboard, metrics):
    """All phases that a rank reports are in the chart of phases, and none else."""
    phases = metrics[f"{PREFIX}phase_seconds_total"]["phase"]
    assert phases >= {*PHASES_MS}
    (chart,) = (panel for panel in charts(dashboard) if panel["title"].startswith("Phases"))
    shown = {one["matcher"]["options"] for one in chart["fieldConfig"]["overrides"]}
    asked = {dict(LABEL.findall(target["expr"]))["phase"] for target in chart["targets"]}
    assert shown == asked == phases


def test_it_has_the_form_that_grafana_loads(dashboard):
    """Panels have their own ids and places that do not overlap; queries have the data source."""
    assert dashboard["id"] is None  # Grafana gives one at the import
    assert dashboard["schemaVersion"] >= 36
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in charts(dashboard):
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)
    for target in targets(dashboard):
        assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
