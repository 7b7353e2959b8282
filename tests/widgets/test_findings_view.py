"""Findings in a notebook: cards, and the magics that show them."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import example_vms
import pytest
from fake_machine import Machine, snap
from fake_nvml import FakeNvml, h100
from IPython.core.interactiveshell import InteractiveShell
from pci_host import A, B, C, D, build_host
from topology_files import azure_ndv4

from workbench.doctor import Finding
from workbench.magics import WorkbenchMagics
from workbench.resources import Snapshot
from workbench.widgets.findings import FindingsView, cards
from workbench.widgets.machine import resources_view
from workbench.widgets.tree_picture import tree_picture

FINDING = Finding(
    rule="shm_size",
    severity="error",
    subject="this VM",
    evidence="<64 MiB>",
    why="workers die",
    fix="`docker run --shm-size=8g`",
    source="PyTorch README",
)


@pytest.fixture
def files(tmp_path):
    """Two snapshots, of which the second has little shared memory, and a topology file."""
    snapshot = snap(Machine(tmp_path / "vm"), FakeNvml(h100()))
    for name, shm in (("good", 8 << 30), ("bad", 64 << 20)):
        host = replace(snapshot.host, shm_bytes=shm, hostname=name)
        gpus = tuple(replace(gpu, uuid=f"GPU-{name}") for gpu in snapshot.gpus)
        (tmp_path / f"{name}.json").write_text(replace(snapshot, host=host, gpus=gpus).to_json())
    (tmp_path / "azure.xml").write_text(azure_ndv4())
    return tmp_path


@pytest.fixture
def magics():
    return WorkbenchMagics(InteractiveShell())


class _Balance(HTMLParser):
    """Finds an element that is closed elsewhere than it was opened."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def text_of(html):
    balance = _Balance()
    balance.feed(html)
    assert balance.open == []
    return re.sub(r"<[^>]+>", "", html)


def test_a_card():
    """Severity as a word next to its sign, the evidence escaped, the command as code."""
    html = cards([FINDING])
    text = text_of(html)
    assert "error \u00b7 this VM: &lt;64 MiB&gt;" in text
    assert 'aria-label="error: this VM"' in html
    assert re.search(r"<code[^>]*>docker run --shm-size=8g</code>", html)
    assert "PyTorch README [shm_size]" in text


def test_words_have_the_pages_own_colour():
    """Theme colours are on signs and edges alone, so that words read on any ground."""
    html = cards([replace(FINDING, severity=severity) for severity in ("warning", "info")])
    coloured = re.findall(r'<(\w+) style="color:var[^>]*aria-hidden="true"', html)
    assert coloured == ["span", "span"]
    assert len(re.findall(r"color:var\(--jp-(?:warn|info)-color1", html)) == 2


def test_verdict_above_the_cards(files):
    """One line gives the result, also if there are no findings."""
    snapshot = Snapshot.load(files / "good.json")
    assert "good (1 GPU, no NICs): 1 error." in text_of(
        FindingsView(snapshot, [FINDING])._repr_html_()
    )
    assert "found anything wrong" in text_of(FindingsView(snapshot, [])._repr_html_())


def test_verdict_of_a_topology_file(files):
    """It says that the file describes places only, as text and above the cards."""
    snapshot = Snapshot.from_nccl_topology(files / "azure.xml")
    for found, words in (([], "nothing wrong"), ([FINDING], "1 error")):
        view = FindingsView(snapshot, found)
        assert f"{words} in what the file says." in " ".join(repr(view).split())
        text = text_of(view._repr_html_())
        assert f"(8 GPUs, 8 NICs): {words} in what the file says." in text
        assert "run workbench doctor in the VM itself" in text
        assert "rules" not in text


def test_topology_files_are_compared(magics, files):
    """The number of VMs that are only known from a topology file is shown."""
    both = magics.doctor(f"{files}/azure.xml {files}/azure.xml")
    assert "only a topology file is known of all of them" in text_of(both._repr_html_())
    one = magics.doctor(f"{files}/azure.xml {files}/good.json")
    assert "only a topology file is known of 1 of them" in text_of(one._repr_html_())


def test_doctor_of_a_file(magics, files):
    """`%doctor FILE` is about the VM of the file."""
    view = magics.doctor(str(files / "bad.json"))
    assert "bad (1 GPU, no NICs): 1 error" in text_of(view._repr_html_())
    assert "ERROR  this VM\n  evidence  the shared memory" in repr(view)


def test_doctor_of_several_files(magics, files):
    """`%doctor FILE FILE` compares the VMs, then checks each."""
    view = magics.doctor(f"{files}/good.json {files}/bad.json")
    text = text_of(view._repr_html_())
    assert text.startswith("2 VMs compared: none of")
    assert text.index("good (1 GPU") < text.index("bad (1 GPU")
    assert repr(view).startswith("2 VMs compared")


def test_file_with_a_blank_in_its_name(magics, files):
    """A name in quotes is taken without them."""
    (files / "a b.json").write_text((files / "good.json").read_text())
    assert "good (1 GPU" in repr(magics.doctor(f'"{files}/a b.json"'))


def test_files_or_vms(magics, files):
    """Files and `--hosts` at once is a question that has no answer."""
    with pytest.raises(ValueError, match="Give one of them"):
        magics.doctor(f"{files}/good.json --hosts vm1")


def test_resources_of_a_topology_file(magics, files):
    """`%resources FILE` shows a vendor's file, and writes it for NCCL."""
    new = files / "new.xml"
    view = magics.resources(f"{files}/azure.xml --write-topology {new}")
    assert view.snapshot.distance(0, "0104:00:00.0") in ("PIX", "SYS")
    html = view._repr_html_()
    assert "NUMA node 0" in text_of(html)
    assert "Host: unknown" in text_of(html)
    assert Snapshot.from_nccl_topology(new).pcie.distances == view.snapshot.pcie.distances


def test_the_picture(tmp_path):
    """A tree is drawn with its switches and names, in words for a screen reader too."""
    picture = tree_picture(snap(build_host(Machine(tmp_path / "host"))))
    text_of(picture)
    words = re.search(r'aria-label="([^"]*)"', picture)[1]
    assert words == (
        f"NUMA node 0: PCIe switch with (PCIe switch with ({A}, {B}, mlx5_0), {C}); "
        f"NUMA node 1: {D}, mlx5_1"
    )
    assert "NVLink" not in picture


def test_nvlinks_in_the_picture(files):
    """GPUs that reach each other over NVLink are joined below."""
    given = Snapshot.load(example_vms.FOLDER / "vm1.json")
    assert tree_picture(given).count(">NVLink<") == 1
    assert "GPU 0, GPU 1, mlx5_0" in resources_view(given)._repr_html_()


def test_no_picture(files):
    """Without a tree, or without a second device in it, there is none."""
    assert tree_picture(Snapshot.load(files / "good.json")) == ""


def test_this_machine(magics):
    """Without a file it is this machine, whatever that has."""
    assert "GPU" in text_of(magics.doctor("")._repr_html_())
    assert repr(magics.resources("")).startswith("Host ")
