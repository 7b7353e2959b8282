"""Files that are incomplete, or not those of a run."""

import json
import shutil

import pytest

import workbench as wb
from workbench.errors import RunError


@pytest.mark.parametrize("kind", ["iterations", "collectives", "layouts"])
def test_a_file_cut_at_any_byte_gives_what_is_before(ended, kind, recwarn):
    """No cut raises; what remains is a beginning of the run, and the cut is reported."""
    path = ended.path / f"{kind}-0.arrows"
    whole, rows = path.read_bytes(), ended.to_frame()
    sizes = set()
    for size in {*range(0, len(whole), 251), *range(len(whole) - 20, len(whole))}:
        path.write_bytes(whole[:size])
        run = wb.open_run(ended.path)
        found, single = run.to_frame(), run.collectives()
        assert found.equals(rows[rows["iteration"].isin(found["iteration"].unique())])
        assert len(single) in {0, 16, 32, 48}
        assert any("cut short" in problem for problem in run.problems), size
        sizes.add(len(found) if kind == "iterations" else len(single))
    assert len(sizes) >= (4 if kind != "layouts" else 2)
    path.write_bytes(whole)
    assert wb.open_run(ended.path).problems == []


def test_a_file_with_other_bytes_in_it_is_no_disaster(ended, recwarn):
    """Damage anywhere ends what can be read, at most, and is never an error of ours."""
    path = ended.path / "iterations-0.arrows"
    whole = path.read_bytes()
    for place in range(0, len(whole), 131):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert len(wb.open_run(ended.path).to_frame()) <= 24
    path.write_bytes(b"this is no Arrow stream at all" * 9)
    run = wb.open_run(ended.path)
    assert len(run) == 0
    assert not run.collectives().empty
    assert any("iterations-0.arrows" in problem for problem in run.problems)


def test_a_run_without_its_description(ended):
    """The timings of a folder whose run.json is lost or broken can still be read."""
    (ended.path / "run.json").write_text("{")
    with pytest.warns(UserWarning, match="the facts about the run cannot be read"):
        run = wb.open_run(ended.path)
    assert run.to_frame().equals(ended.to_frame())
    (ended.path / "run.json").unlink()
    with pytest.warns(UserWarning, match="the facts about the run cannot be read"):
        run = wb.open_run(ended.path)
    assert (run.cluster, run.ranks, run.started) == ("not known", [], None)


@pytest.mark.filterwarnings("ignore:run")
def test_another_version_is_read_by_the_names_that_both_know(ended):
    """A later format, a missing column and a new one are reported, and the rest is read."""
    import pyarrow as pa

    facts = ended.path / "run.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"format": 99}))
    path = ended.path / "iterations-0.arrows"
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    table = table.drop_columns(["data_ns"]).append_column("later", pa.array([1] * len(table)))
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    with pytest.warns(UserWarning, match="format 99"):
        run = wb.open_run(ended.path)
    text = " ".join(run.problems)
    assert all(part in text for part in ("format 99", "data_ns", "later"))
    assert run.to_frame()["forward_us"].equals(ended.to_frame()["forward_us"])
    assert (run.to_frame()["data_us"] == 0).all()


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda path: None, "no such"),
        (lambda path: path.mkdir(), "is empty"),
        (lambda path: (path.mkdir(), (path / "x").touch()), "holds no run"),
        (lambda path: path.write_text("x"), "is a file"),
    ],
    ids=["nothing", "an empty folder", "another folder", "a file"],
)
def test_what_is_no_run_is_refused(tmp_path, made, says):
    """The error says what was asked, what was found, and where runs are."""
    made(tmp_path / "asked")
    with pytest.raises(RunError, match=f"asked.*{says}.*runs"):
        wb.open_run(tmp_path / "asked")


def test_a_run_that_was_removed_says_so(ended):
    """A run that is gone since it was opened is not an empty one."""
    run = wb.open_run(ended.path)
    shutil.rmtree(ended.path)
    with pytest.raises(RunError, match="is gone"):
        run.to_frame()
