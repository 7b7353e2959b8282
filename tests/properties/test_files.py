"""Snapshots, topology files, host files, calibrations, studies and verdicts of any content.

Each is read, or refused with one error of this package that can be printed; what was read can be
shown.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import topology_files
from hostile import controls
from hypothesis import example, given
from hypothesis import strategies as st
from random_inputs import corpus, damaged_bytes, damaged_json, json_values, one_in, texts

from workbench.advisor.scaling_point import FailedSize, ScalingPoint
from workbench.advisor.scaling_record import ScalingStudy
from workbench.doctor import describe, diagnose
from workbench.errors import RunError, SnapshotError, UsageError
from workbench.fabric import stored
from workbench.fabric.fit import fit
from workbench.hosts import parse_hosts
from workbench.hosts.parsing import text as hosts_text
from workbench.resources import Snapshot, Unknown
from workbench.resources.snapshot import parse
from workbench.timings.verdict import Cause, Verdict
from workbench.widgets.findings import FindingsView
from workbench.widgets.machine import ResourcesView

FIXTURES = sorted((Path(__file__).parents[2] / "labextension/test/fixtures").glob("*.json"))
SNAPSHOTS = [json.loads(path.read_text()) for path in FIXTURES]
TOPOLOGIES = [topology_files.azure_ndv4().encode(), topology_files.aws_p4d().encode()]


def one_error(error):
    """An error's text, which is bounded and can be printed."""
    text = str(error)
    assert text
    assert len(text) < 2_000
    assert controls(text) == set()
    text.encode()


def show(data):
    try:
        snapshot = parse(data, "given")
    except SnapshotError as error:
        one_error(error)
        return
    findings = diagnose(snapshot)
    shown = f"{snapshot}\n{describe(snapshot, findings)}"
    shown += ResourcesView(snapshot)._repr_html_() + FindingsView(snapshot, findings)._repr_html_()
    assert controls(shown) == set()
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


@given(st.one_of(st.binary(max_size=60), json_values.map(lambda one: json.dumps(one).encode())))
@example(b"")
@example(b"\xff\xfe{\x00")
@example(b'{"version": 2}')
@example(b"<system>" * 5_000)
@example(b'<!DOCTYPE a [<!ENTITY b "c">]><system>&b;</system>')
def test_any_bytes_as_a_snapshot(data):
    show(data)


@one_in(2)
@given(st.sampled_from(SNAPSHOTS).flatmap(damaged_json))
def test_damaged_snapshots(text):
    show(text.encode())


@given(st.sampled_from(TOPOLOGIES).flatmap(damaged_bytes))
def test_damaged_topology_files(data):
    show(data)


names = st.sampled_from(("system", "cpu", "pci", "gpu", "nic", "net", "nvlink", "c2c", "x"))
attributes = st.dictionaries(
    st.sampled_from(
        ("version", "numaid", "busid", "class", "link_speed", "link_width", "dev", "sm", "rank",
         "gdr", "name", "speed", "port", "guid", "target", "tclass", "count", "arch", "affinity")
    ),
    st.one_of(
        st.sampled_from(("0000:0f:00.0", "0x030200", "0x020700", "0x060400", "ffffff,ffffffff")),
        st.integers(-2, 2**65).map(str),
        st.text(st.characters(min_codepoint=32, exclude_categories=("Cs",)), max_size=6),
    ),
    max_size=5,
)  # fmt: skip


def element(children):
    def build(name, attributes_, inner):
        from xml.sax.saxutils import quoteattr

        given_ = "".join(f" {key}={quoteattr(value)}" for key, value in attributes_.items())
        return f"<{name}{given_}>{''.join(inner)}</{name}>"

    return st.builds(build, names, attributes, children)


trees = st.recursive(
    element(st.just([])), lambda inner: element(st.lists(inner, max_size=4)), max_leaves=12
)


@one_in(2)
@given(st.lists(trees, max_size=4))
def test_any_xml_as_a_topology_file(inner):
    show(f'<system version="1">{"".join(inner)}</system>'.encode())


@pytest.mark.parametrize("name", corpus("snapshots"))
def test_snapshots_that_once_failed(name):
    show(corpus("snapshots")[name])


# hosts

host_parts = st.sampled_from(
    ("vm1", "vm-2.example", "me", "@", ":", ",", "2", "0", "2222", "99999", "[fd00::1]", "[", "]",
     " ", "-oProxyCommand=x", "$(x)", "\n", "\0", "=", "slots=", "max_slots=", "port=", "user=",
     "key=", "env.A=", "interface=", "directory=", "python=", '"', "'", "#", "²", "٣", "\ud800")
)  # fmt: skip
host_lines = st.lists(host_parts | st.text(max_size=3), max_size=12).map("".join)


def parsed(hosts):
    try:
        found = parse_hosts(hosts)
    except UsageError as error:
        one_error(error)
        return None
    for host in found:
        assert not host.name.startswith("-")
        assert not (host.user or "").startswith("-")
        assert host.slots > 0
    return found


@given(host_lines)
@example("vm1:2,vm1:2")
@example("~nobody-of-this-name/hosts")
@example("a" * 5_000)
def test_any_text_as_hosts(text):
    """Hosts that were read are written as text that is read as the same hosts."""
    if text.strip().startswith(("/", ".", "~")):
        return
    hosts = parsed(text)
    if hosts:
        assert parse_hosts(hosts_text(hosts)) == hosts


@given(st.lists(host_lines, max_size=5).map("\n".join))
@example('vm1 key="' + "a" * 50_000)
@example("'\"" * 20_000)
@example("vm1 slots=1\n" * 2_000)
def test_any_text_as_a_host_file(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("hosts") / "hosts"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    parsed(file)


@given(
    st.recursive(
        st.one_of(texts, st.integers(), st.none(), st.floats(), st.binary()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(("name", "slots", "user", "port", "x", 3)), inner),
        ),
    )
)
def test_any_objects_as_hosts(value):
    if isinstance(value, str) and "/" in value:
        return
    parsed(value)


# calibrations, studies, verdicts

FABRIC = fit([1 << n for n in range(12, 24)], [50 + (1 << n) / 900 for n in range(12, 24)], 4)
CONTEXT = {"ranks": "4", "VMs": "2"}


@one_in(2)
@given(damaged_json(asdict(FABRIC)) | json_values.map(json.dumps))
def test_any_stored_calibration(tmp_path_factory, text):
    """One that is accepted predicts a positive time that grows with the size."""
    folder = tmp_path_factory.mktemp("stored")
    place = stored.save(folder, fit([4096, 1 << 20], [50, 900], 2))
    for file in (place, stored._path(folder, CONTEXT)):
        file.write_text(text)
    try:
        fabric = stored.find(folder, CONTEXT)
    except UsageError as error:
        one_error(error)
        return
    assert controls(repr(fabric)) == set()
    predicted = [fabric.predict_us(size) for size in (0, 1, 4096, 10**6, 10**9)]
    assert predicted == sorted(predicted)
    assert fabric.predict_us(10**6, 2 * fabric.n) >= 0


POINT = ScalingPoint(
    ranks=2, iterations=40, iteration_us=900.0, low_us=880.0, high_us=930.0, exposed_us=100.0,
    efficiency=0.9, nominal=(0.8, 1.0), calibrated=(0.7, 0.9), samples=64.0, gradient_bytes=4_000,
    tensors=4, runs=2,
)  # fmt: skip
STUDY = ScalingStudy("TCP", (POINT,), ("TCP eth0",), ("vm1",), (FailedSize(4, "why"),), ("x",))


@one_in(2)
@given(damaged_json({"version": 2, **asdict(STUDY)}) | json_values.map(json.dumps))
@example('{"version": 2}')
@example("[]")
def test_any_scaling_study(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("study") / "study.json"
    file.write_text(text)
    try:
        study = ScalingStudy.load(file)
        shown = f"{study!r}{study.summary}{study.to_frame()}{study.compare(study)!r}"
    except UsageError as error:
        one_error(error)
        return
    assert "nan" not in study.summary
    assert controls(shown) == set()
    study.save(file)
    assert ScalingStudy.load(file) == study


CAUSE = Cause("waiting", "measured", "do it", 12.0, 0.3, False, "±1", "more", 1.0, Unknown("why"))
VERDICT = Verdict(
    "28 ms; change: do it", 3, 0, 63, 2, 28_000.0, 27_000.0, 9_000.0, 0.3, 1.0, 2.0, 3.0,
    Unknown("no loader"), (CAUSE,),
)  # fmt: skip


@given(damaged_json(VERDICT.to_dict()) | json_values.map(json.dumps))
def test_any_verdict(text):
    try:
        verdict = Verdict.from_dict(json.loads(text))
    except RunError as error:
        one_error(error)
        return
    shown = f"{verdict}{verdict.headline}{''.join(map(str, verdict.causes))}"
    assert controls(shown) == set()
    assert Verdict.from_dict(verdict.to_dict()) == verdict
