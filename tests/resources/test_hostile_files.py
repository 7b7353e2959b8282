"""Files that a person names, of any kind and content: one clear error, or their content.

Content is damaged by seed (`hostile`), so that a failure can be repeated.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import topology_files
from hostile import controls, mutated_bytes, mutated_json
from large_snapshots import large
from nvml_machines import hgx_h100
from timers import PROCESS_S

import workbench as wb
from workbench.cluster import Cluster
from workbench.doctor import describe, diagnose
from workbench.errors import SnapshotError, UsageError, WorkbenchError
from workbench.hosts import parse_hosts
from workbench.resources import NcclSettings, Snapshot, take_snapshot
from workbench.resources.snapshot import load, parse
from workbench.safefiles import load_json, make_private_folder, read_file
from workbench.widgets.findings import FindingsView
from workbench.widgets.machine import ResourcesView

FIXTURES = sorted((Path(__file__).parents[2] / "labextension/test/fixtures").glob("*.json"))
TOPOLOGIES = (topology_files.azure_ndv4().encode(), topology_files.aws_p4d().encode())
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b1m\u202e\x7f\ud800"
"""For one damaged snapshot and all that is shown of it; a good one takes 0.1 s."""


def show(snapshot):
    """All that the product makes of a snapshot that it took."""
    findings = diagnose(snapshot)
    text = f"{snapshot}\n{describe(snapshot, findings)}"
    html = ResourcesView(snapshot)._repr_html_() + FindingsView(snapshot, findings)._repr_html_()
    assert "<script" not in html
    json.dumps(snapshot.to_plain(), allow_nan=False)
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    try:
        text += snapshot.to_nccl_topology()
    except SnapshotError as error:
        text += str(error)
    return text


def read_and_show(data):
    try:
        text = show(parse(data, "given\x1b[2J"))
    except WorkbenchError as error:
        text = str(error)
        assert len(text) < 2_000
    assert controls(text) == set()
    text.encode()


@pytest.mark.slow
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_damaged_snapshots(path):
    """Another type, number or text in any place, a field twice or missing: never a stumble."""
    plain = json.loads(path.read_text())
    for seed in range(60):
        read_and_show(mutated_json(plain, seed).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("data", TOPOLOGIES, ids=("azure", "aws"))
def test_damaged_topology_files(data):
    for seed in range(400):
        read_and_show(mutated_bytes(data, seed))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"version": 2, "taken_at": 1' + "0" * 400 + "}", "401 digits"),
        ('{"version": 2, "taken_at": NaN}', "not finite"),
        ('{"version": 2, "taken_at": 1e999}', "not finite"),
        ('{"version": 2, "version": 2}', "'version' twice"),
        ("[" * 100_000, "nested too deeply"),
        ("", "neither a snapshot"),
        ("{", "not complete JSON"),
        ("\x1f\x8b\x08\x00", "neither a snapshot"),
        ('{"version": "\\ud800"}', "version '\\ud800'"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_no_snapshot(tmp_path, text, says):
    file = tmp_path / "given.json"
    file.write_text(text)
    with pytest.raises(SnapshotError) as raised:
        load(file)
    assert says in str(raised.value)
    assert str(file) in str(raised.value)
    str(raised.value).encode()


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\n\n"])
def test_a_byte_order_mark_is_passed_over(tmp_path, mark):
    file = tmp_path / "given.json"
    file.write_bytes(mark + FIXTURES[0].read_bytes())
    assert load(file) == Snapshot.from_json(FIXTURES[0].read_text())


def test_more_gpus_than_any_host_has():
    """The error names their number and the limit; the limit itself is read and shown."""
    with pytest.raises(SnapshotError, match=r"gpus: 600 entries\. At most 256"):
        Snapshot.from_plain(large(600))
    with pytest.raises(SnapshotError, match=r"nics: 3,000 entries\. At most 2,048"):
        Snapshot.from_plain(large(1, 3_000))
    plain = large(8)
    plain["gpus"][0]["name"] = "x" * 100_000
    with pytest.raises(SnapshotError, match=r"gpus\[0\].name: a text of 100,000 characters"):
        Snapshot.from_plain(plain)


def test_what_is_shown_of_the_most(tmp_path):
    """Of 256 GPUs a terminal and a notebook show some, and say where the rest is."""
    snapshot = Snapshot.from_plain(large(256, 300))
    text, html = str(snapshot), ResourcesView(snapshot)._repr_html_()
    assert "and 192 more GPUs" in text
    assert "and 236 more NICs" in text
    assert "The first 32 of" in text
    assert len(text.splitlines()) < 600
    assert "<details><summary>192 more GPUs</summary>" in html
    assert "44 NICs are not shown" in html
    assert len(html) < 500_000
    assert diagnose(snapshot) is not None


def test_links_by_the_billion():
    """A topology file's count of links is no order to make so many."""
    text = (
        topology_files.aws_p4d()
        .replace('class="0x030200"', 'class="0x030200" sm="²"')
        .replace(
            "/>", '><gpu sm="8²"><nvlink target="0000:20:1c.0" count="999999999"/></gpu></pci>', 1
        )
    )
    with pytest.raises(SnapshotError, match="999999999 NVLinks to one peer"):
        parse(text.encode(), "given")


def terminal(*arguments, **options):
    done = subprocess.run(
        [sys.executable, "-m", "workbench", *arguments],
        check=False, capture_output=True, timeout=60, **options,
    )  # fmt: skip
    return done.returncode, done.stdout.decode() + done.stderr.decode()


def test_no_text_of_a_file_reaches_the_terminal_raw(tmp_path):
    """Names and reasons, in what is shown and in errors; the file's own name as well."""
    plain = json.loads((FIXTURES[0].parent / "hgx-h100-host.json").read_text())
    plain["host"]["hostname"] = ESCAPES
    plain["host"]["os"] = {"unknown": ESCAPES}
    plain["gpus"][0]["name"] = {"unknown": ESCAPES}
    plain["probes"]["nics"] = {"status": "failed", "reason": ESCAPES, "elapsed_ms": 1.0}
    shown = tmp_path / "a\x1b[31m\u202e.json"
    shown.write_text(json.dumps(plain))
    refused = tmp_path / "b\x1b[31m.json"
    refused.write_text(json.dumps({**plain, "version": ESCAPES}))
    missing = tmp_path / "c\x9b31m"
    for verb, file in (("--file", shown), ("--file", refused), ("--topology", shown),
                       ("--file", missing)):  # fmt: skip
        for command in ("resources", "doctor"):
            _, text = terminal(command, verb, str(file))
            assert text
            assert controls(text) == set(), (command, file)
            assert "Traceback" not in text


@pytest.mark.parametrize("what", ["pipe", "socket", "zero", "folder", "loop", "sparse", "nul"])
def test_no_file_that_a_person_can_name_is_waited_for(tmp_path, what):
    """A pipe without a writer, endless devices, 100 MB: an error at once, of every reader."""
    path = tmp_path / "given"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        import socket

        socket.socket(socket.AF_UNIX).bind(str(path))
    elif what == "zero":
        path.symlink_to("/dev/zero")
    elif what == "folder":
        path.mkdir()
    elif what == "loop":
        path.symlink_to(path)
    elif what == "sparse":
        with path.open("wb") as file:
            file.truncate(100 << 20)
    else:
        path = Path(f"{tmp_path}/a\0b")
    for read, kind in (
        (load, SnapshotError),
        (Snapshot.load, SnapshotError),
        (Snapshot.from_nccl_topology, SnapshotError),
        (parse_hosts, UsageError),
        (lambda path: Cluster(hosts="vm1:2", ssh_config=path), UsageError),
        (wb.open_run, WorkbenchError),
    ):
        if what == "sparse" and kind is UsageError and read is not parse_hosts:
            continue  # ssh reads its own configuration
        with pytest.raises(kind) as raised:
            read(path)
        assert controls(str(raised.value)) == set()


def test_a_home_of_nobody_is_an_error_of_ours():
    for read in (load, parse_hosts, lambda path: Cluster(hosts="vm1", ssh_config=path)):
        with pytest.raises(WorkbenchError, match="not a valid path"):
            read("~nobody-has-this-name/x")


def test_the_doctor_of_a_pipe_ends(tmp_path):
    """As the command too, which says why on one line."""
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", "/dev/zero"):
        status, text = terminal("doctor", str(file))
        assert status == 1
        assert "not a file" in text
        assert len(text.splitlines()) == 1


@pytest.mark.parametrize("name", ["NCCL_TOPO_FILE", "NCCL_CONF_FILE"])
@pytest.mark.parametrize("path", ["pipe", "/dev/zero"])
def test_files_that_the_environment_names(tmp_path, name, path):
    """NCCL's settings may name anything: this machine is read all the same."""
    os.mkfifo(tmp_path / "pipe")
    settings = NcclSettings({name: str(tmp_path / path)}, tmp_path)
    snapshot = take_snapshot(nvml=hgx_h100(), nccl=settings)
    assert snapshot.probes["pcie"].status != "failed"
    if name == "NCCL_TOPO_FILE":
        assert "not a file" in snapshot.pcie.topology_file.reason


def test_numbers_of_json(tmp_path):
    """64 bits and what is finite, as the strictest reader of the product has them."""
    assert load_json("[18446744073709551615, -1, 1e3]") == [2**64 - 1, -1, 1000.0]
    for text in ("[1" + "0" * 30 + "]", "[NaN]", '{"a": 1, "a": 1}', "[" * 9_999, b"\xff", ""):
        with pytest.raises(ValueError):  # noqa: PT011 - each has words of its own
            load_json(text)
    file = tmp_path / "five"
    file.write_bytes(b"12345")
    assert read_file(file, 5) == b"12345"
    with pytest.raises(OSError, match="larger than"):
        read_file(file, 4)


KEEP = """
import os, sys
os.umask({umask})
sys.path[:0] = ["tests/support"]
from recorded_training import Training
training = Training()
training.train(4)
training.close()
from pathlib import Path
from workbench.resources.process_registry import ProcessRegistry
ProcessRegistry(Path(os.environ["JUPYTER_RUNTIME_DIR"]) / "gradient-workbench").register("x", {{}})
from workbench.cluster.processes import save_state
from workbench.cluster.controller import new_folder
save_state(new_folder(), {{"name": "x"}})
"""


def test_a_field_twice_among_many():
    """The time grows with the number of fields: with its square, it would be half an hour."""
    names = [*(f"a{number}" for number in range(400_000)), "z", "z"]
    with pytest.raises(ValueError, match="the field 'z' twice"):
        load_json("{" + ",".join(f'"{name}":0' for name in names) + "}")


@pytest.mark.parametrize("umask", ["0o000", "0o022", "0o077"])
def test_what_is_written_is_private(tmp_path, umask):
    """Runs, the runtime folder and notices are the user's alone, whatever the umask."""
    environment = {
        **os.environ,
        "GRADIENT_WORKBENCH_RUNS": str(tmp_path / "data/gradient-workbench/runs"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter/runtime"),
        "PYTHONPATH": "tests",
    }
    subprocess.run(
        [sys.executable, "-c", KEEP.format(umask=umask)], env=environment, check=True,
     timeout=PROCESS_S,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    modes = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
    }
    assert any(name.endswith("run.json") for name in modes)
    assert any(name.endswith(".arrows") for name in modes)
    assert any(name.endswith("cluster.json") for name in modes)
    for name, mode in modes.items():
        assert mode == (0o700 if (tmp_path / name).is_dir() else 0o600), name


@pytest.mark.parametrize("below", ["", "folder", "folder/folder"])
def test_a_file_in_the_place_of_a_folder(tmp_path, below):
    """The error names the file, and says that it is no folder."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NotADirectoryError, match=r"Not a directory: .*file'"):
        make_private_folder(file / below)
