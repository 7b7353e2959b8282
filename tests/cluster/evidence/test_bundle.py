"""The file of a bundle: its parts, its limits, and what is removed from it."""

import json
import stat

import pytest
from bundles import BundleFile

from workbench import redaction
from workbench.cluster.evidence import bundle as bundles
from workbench.cluster.evidence.bundle import Bundle
from workbench.redaction import Redactor
from workbench.resources import Unknown
from workbench.timings.folder import MAX_EVIDENCE, RunFolder, evidence_file, evidence_files
from workbench.timings.runs import MAX_RUNS, prune_evidence


def test_parts_and_what_is_missing(tmp_path):
    """The manifest and the text list each part, and the reason for each missing one."""
    made = Bundle("A test.", Redactor(), {"cell": 3})
    made.add("a.txt", "text", "some text")
    made.add_json("b.json", {"x": float("nan"), "y": [1, Unknown("why")]}, "values")
    made.add_json("c.json", Unknown("it was not there"), "more")
    made.add("d.txt", Unknown("later"), "")
    made.add("d.txt", "now", "replaced")
    path = tmp_path / "new" / "x.zip"
    made.write(path)
    found = BundleFile(path)
    assert found["a.txt"] == "text"
    assert found.json("b.json")["x"] is None
    assert found["d.txt"] == "now"
    assert found.missing == {"c.json": "it was not there"}
    assert found.manifest["cell"] == 3
    assert "c.json  it was not there" in found["README.txt"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_size_is_limited(tmp_path, monkeypatch):
    """Text is cut off, JSON is left out so that it stays readable; both are listed."""
    monkeypatch.setattr(bundles, "MAX_PART_BYTES", 1000)
    monkeypatch.setattr(bundles, "MAX_BYTES", 1500)
    made = Bundle("A test.", Redactor())
    made.add("long.txt", "x" * 5000, "long")
    made.add("rest.txt", "y" * 5000, "longer than what is left")
    made.add_json("values.json", list(range(1000)), "many")
    path = tmp_path / "x.zip"
    made.write(path)
    found = BundleFile(path)
    assert "4,000 further characters" in found["long.txt"]
    assert len(found["rest.txt"]) < 600
    assert found.manifest["cut_off"] == ["long.txt", "rest.txt"]
    assert "too many" in found.missing["values.json"]


def test_a_secret_across_a_cut_is_removed(tmp_path, monkeypatch):
    """Text is searched beyond the cut, at whole lines; numbers are not searched."""
    monkeypatch.setattr(redaction, "OVERLAP", 100)
    made = Bundle("A test.", Redactor())
    lines = "".join(f"line {n:03}\n" for n in range(20))
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEabcdefg\n" * 99 + "-----END PRIVATE KEY-----\n"
    made.add_end("end.txt", key + lines, "the end", 300)
    made.add_end("quoted.txt", "x" * 80 + f"\npassword='{'hunter2 ' * 9}'\n" + lines, "end", 200)
    monkeypatch.setattr(bundles, "MAX_PART_BYTES", 200)
    made.add("start.txt", lines + 'password="hunter2 hunter2"\n' + lines, "the start")
    made.add("numbers.csv", "token=0123456789", "numbers", numeric=True)
    path = tmp_path / "x.zip"
    made.write(path)
    found = BundleFile(path)
    assert found["numbers.csv"] == "token=0123456789"
    assert "MIIE" not in found.text
    assert "hunter2" not in found.text
    for name in ("end.txt", "quoted.txt"):
        assert "earlier characters are left out" in found[name]
        assert found[name].endswith(lines)
    assert found["start.txt"].startswith(lines)
    assert "further characters" in found["start.txt"]


def test_a_failed_write_keeps_the_earlier_file(tmp_path):
    path = tmp_path / "x.zip"
    Bundle("First.", Redactor()).write(path)
    before = path.read_bytes()
    broken = Bundle("Second.", Redactor())
    broken._parts["a.txt"] = None, ""
    with pytest.raises(AttributeError):
        broken.write(path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["x.zip"]


def test_old_files_are_removed(tmp_path):
    """Those of this run, and folders of clusters that trained nothing; runs are kept."""
    own = tmp_path / "20260101-000000-own"
    for folder in (own, *(tmp_path / f"2025{n:04}-000000-x" for n in range(MAX_RUNS + 2))):
        folder.mkdir()
        for number in range(MAX_EVIDENCE + 1 if folder == own else 1):
            evidence_file(folder, f"cell-{number}").touch()
    trained = tmp_path / "20240101-000000-trained"
    trained.mkdir()
    (trained / "run.json").write_text(json.dumps({}))
    evidence_file(trained, "now").touch()
    prune_evidence(own)
    assert len(evidence_files(own)) == MAX_EVIDENCE
    assert len(list(tmp_path.glob("2025*"))) == MAX_RUNS
    assert not (tmp_path / "20250000-000000-x").exists()
    assert evidence_files(trained)


def test_bundles_are_removed_with_their_run(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.write_facts({})
    evidence_file(run.path, "cell-1").touch()
    (run.path / ".evidence-cell-1.zip.123-ab.part").touch()
    assert run.remove()
    assert not run.path.exists()
