"""The reference has all that the code has: names, options, rules, metrics, variables, files."""

import json
import re
import zipfile
from functools import cache

import pytest
from environments import ROOT
from generate import command_line, doctor_rules, magics, metrics, names, records, rest, streams
from generate.case_texts import FIELDS
from generated import fill
from training_loops import MODEL, PLAIN

import workbench as wb
from workbench.doctor import diagnose
from workbench.doctor.rules import ACROSS, LIVE, RULES
from workbench.resources import Snapshot
from workbench.timings.verdict import Verdict

REFERENCE = ROOT / "docs" / "reference"
EXAMPLES = ROOT / "notebooks" / "examples"
EVERY_RULE = (*RULES, *LIVE, *ACROSS)


@cache
def page(name):
    """A page of the reference, with its generated parts."""
    return fill((REFERENCE / name).read_text("utf-8"))


def table_words(text, title):
    """The code in the first column of the table below a title."""
    below = text.partition(f"# {title}\n")[2]
    section = re.split(r"^#+ ", below, maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


# Python


def documented():
    """The objects that the pages of the API document, by name."""
    text = "".join(page(f"api/{path.name}") for path in (REFERENCE / "api").glob("*.md"))
    return set(re.findall(r"^\.\. auto\w+:: (\S+)", text, flags=re.MULTILINE))


@pytest.mark.parametrize("name", [name for name in wb.__all__ if not name.startswith("_")])
def test_every_public_name_is_documented(name):
    """Each has a section, and those that are no errors are in the list of names."""
    assert f"workbench.{name}" in documented()
    if not name.endswith(("Error", "Failed")) and name in names.names():
        assert f"`wb.{name} <workbench.{name}>`" in names.markdown()


@pytest.mark.parametrize("name", [name for name in names.names() if name[0].islower()])
def test_what_functions_return_is_documented(name):
    """The classes of this package that a public function returns are documented too."""
    own = set(re.findall(r"[A-Z]\w+", getattr(wb, name).__annotations__["return"])) - {"None"}
    assert own <= {path.rpartition(".")[2] for path in documented()}


def test_errors_are_drawn_below_their_base():
    """A class is deeper than the class that it extends."""
    drawing = page("api/errors.md").partition("```text\n")[2].partition("```")[0]
    indent = {line.strip(): len(line) - len(line.lstrip()) for line in drawing.splitlines()}
    assert indent["WorkbenchError"] == 0
    assert indent["NoCluster"] > indent["ClusterError"] > 0


# Magics and commands


@pytest.mark.parametrize("name", magics.magics())
def test_every_option_of_a_magic_is_documented(name):
    """With its meaning, as ``%name?`` shows it."""
    magic, prefixes = magics.magics()[name]
    _, _, below = page("magics.md").partition(f"\n## `{prefixes[0]}{name}`")
    section = below.partition("\n## ")[0]
    assert_options(magic.parser, section)


@pytest.mark.parametrize("name", command_line.commands())
def test_every_option_of_a_command_is_documented(name):
    """With its meaning, as ``workbench NAME --help`` shows it."""
    section = page("command-line.md").partition(f"## `workbench {name}`")[2].partition("\n## ")[0]
    assert_options(command_line.commands()[name], section)


def assert_options(parser, section):
    for action in parser._actions:
        if action.dest != "help":
            flags = action.option_strings or [action.metavar or action.dest]
            row = re.search(rf"^\| `.*{re.escape(flags[-1])}.*$", section, flags=re.MULTILINE)
            assert row, f"{flags[-1]} is not documented"
            assert row[0].split("|")[2].strip(), f"{row[0]} has no meaning"


# The server


def test_every_route_and_schema_is_documented():
    """Each route with its method, each schema with its fields."""
    text, api = page("rest.md"), rest.load()
    for path, methods in api["paths"].items():
        for method in methods:
            assert f"### {method.upper()} `/workbench/api{path}`" in text
    for name, schema in api["components"]["schemas"].items():
        section = text.partition(f"(schema-{name.lower()})=\n### {name}")[2].partition("\n(")[0]
        assert section
        for field in schema.get("properties", {}):
            assert f"| `{field}` |" in section


def test_metrics_have_their_labels():
    """A page for queries: names with ``_total``, labels, and what is measured."""
    text = page("metrics.md")
    assert "| `gradient_workbench_bytes_total` | counter | `cluster`, `rank`, `vm` |" in text
    assert "| `gradient_workbench_nic_errors_total` | counter | `nic`, `error` |" in text
    for collector in metrics.collectors().values():
        for name, metric in metrics.families(collector):
            assert metric.documentation
            assert f"`{name}`" in text


# The doctor


@pytest.mark.parametrize("rule", EVERY_RULE, ids=lambda rule: f"{rule.name}-{rule.subject[:30]}")
def test_every_rule_has_all_its_texts(rule):
    """What it looks at, and at least one severity, reason, fix and source."""
    text = page("doctor-rules.md")
    assert rule.subject
    assert f"### {rule.name}\n" in text
    for field in FIELDS:
        assert doctor_rules.texts(rule, field), f"{rule.name} has no {field}"


@pytest.mark.parametrize("example", ["vm1.json", "vm2.json"])
def test_findings_have_the_texts_of_the_reference(example):
    """What the doctor says of a VM is what the page has, with values in place of capitals."""
    found = diagnose(Snapshot.load(EXAMPLES / example))
    assert found
    for finding in found:
        own = [rule for rule in EVERY_RULE if rule.name == finding.rule]
        for field in FIELDS:
            texts = [text for rule in own for text in doctor_rules.texts(rule, field)]
            patterns = [re.sub(r"[A-Z_]{4,}", "(?s:.*)", re.escape(text)) for text in texts]
            assert any(re.fullmatch(one, getattr(finding, field)) for one in patterns), finding


# Files and variables


def test_every_variable_is_documented_and_exists():
    """Those of the code are those of the page."""
    used = set()
    for path in (ROOT / "workbench").rglob("*.py"):
        used |= set(re.findall(r"GRADIENT_WORKBENCH_[A-Z_]+", path.read_text("utf-8")))
    assert used == table_words(page("environment.md"), "Of this package")


@pytest.mark.parametrize("kind", streams.STREAMS)
def test_every_column_of_a_stream_has_a_meaning(kind):
    """No cell of the table is empty."""
    _, schema = streams.STREAMS[kind]
    assert [name for name in schema.names if not streams.meaning(name)] == []


def test_a_record_is_a_table_of_its_fields():
    """With the types that they have in JSON, and the record classes that they contain."""
    text = records.sections(Verdict)
    assert "| `exposed_us` | number or unknown |" in text
    assert "| `causes` | array of [Cause](#verdict-cause) |" in text
    assert "(verdict-cause)=\n### Cause" in text


@pytest.fixture(scope="module")
def recorded(cluster, tmp_path_factory):
    """The run of two ranks that were calibrated and have trained, and their evidence bundle."""
    cluster.calibrate(seconds=1, show_progress=False)
    cluster.run(MODEL + PLAIN)
    with pytest.raises(wb.RanksFailed):
        cluster.run("if rank == 1: raise ValueError('for the bundle')")
    bundle = cluster.bundle(tmp_path_factory.mktemp("bundle") / "all.zip")
    name = cluster.name
    cluster.stop()
    return wb.open_run(name), bundle


def test_the_facts_of_a_run_are_documented(recorded):
    """``run.json`` has no key that the page does not have, nor have its ranks."""
    run, _ = recorded
    assert set(run.facts) <= table_words(page("files.md"), "run.json")
    row = re.search(r"^\| `ranks` \| each rank: (.*)$", page("files.md"), flags=re.MULTILINE)[1]
    assert set(run.facts["ranks"][0]) <= set(re.findall(r"`(\w+)`", row))


def test_the_files_of_a_run_are_documented(recorded):
    """As are the streams, whose number is K on the page."""
    run, _ = recorded
    documented = table_words(page("files.md"), "Run")
    found = {re.sub(r"-\d+(?=\.)", "-K", path.name) for path in run.path.iterdir()}
    assert {re.sub(r"evidence-.*\.zip", "evidence-NAME.zip", name) for name in found} <= documented


def test_the_parts_of_a_bundle_are_documented(recorded):
    """Those that it has, and those whose absence it explains."""
    _, bundle = recorded
    with zipfile.ZipFile(bundle) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    names = {re.sub(r"^vms/[^/]+", "vms/NAME", name) for name in manifest["parts"]}
    names |= {re.sub(r"^vms/[^/]+", "vms/NAME", name) for name in manifest["missing"]}
    assert names <= table_words(page("files.md"), "Evidence bundle")
