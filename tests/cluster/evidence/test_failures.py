"""A cell whose rank fails, is killed or hangs leaves one file with what is known about it."""

import os
import signal
import stat
import threading

import pytest
from bundles import BundleFile, completed
from clusters import quiet, training
from disks import fill, small_disk
from timers import FAR_S, eventually, when

import workbench as wb
from workbench.cluster import TextSink
from workbench.cluster.evidence import collect
from workbench.errors import CellTimeout, RanksFailed
from workbench.timings.folder import evidence_file, evidence_files

SECRET = "s3cret-0123456789-planted"
WAITS = "import torch\nif rank == 0:\n    hvd.allreduce(torch.ones(2), name='lonely')\n"


@pytest.fixture(scope="module")
def pair():
    """Two ranks whose kernel and ranks have a secret in their environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_SECRET_KEY", SECRET)
        patch.setenv("MY_SERVICE_TOKEN", SECRET[::-1])
        with wb.Cluster(n=2, hang_after_s=1.0) as running:
            quiet(running, training(3))
            yield running


def failed(cluster, source, **options):
    with pytest.raises((RanksFailed, CellTimeout)) as caught:
        quiet(cluster, source, **options)
    return caught.value


def test_an_error_on_one_rank(pair, tmp_path):
    """The other rank's stack is where it waited, and the file has the last 100 iterations."""
    mark = str(tmp_path / "rank 0 waits")
    source = (
        "import os, threading, time\n"
        "from workbench.rank import session\n"
        "def note():\n"
        "    while session._session.recorder.waits.blocked is None: time.sleep(0.01)\n"
        f"    open({mark!r}, 'w').close()\n"
        "train(120)\n"
        "print('token=' + os.environ['MY_SERVICE_TOKEN'])\n"
        "if rank == 1:\n"
        f"    while not os.path.exists({mark!r}): time.sleep(0.01)\n"
        "    raise ValueError('password=hunter2-hunter2')\n"
        "threading.Thread(target=note, daemon=True).start()\n"
        "hvd.allreduce(torch.ones(2), name='lonely')"
    )
    error = failed(pair, source, timeout=FAR_S)
    assert str(error).splitlines()[-1] == f"Evidence: {error.evidence}"
    assert error._render_traceback_()[-1] == f"Evidence: {error.evidence}"
    assert error.evidence.parent == pair.timings.path
    assert stat.S_IMODE(error.evidence.stat().st_mode) == 0o600
    bundle = completed(error.evidence)
    own, other = bundle["stacks.txt"].split("== rank 1")
    assert "in 'lonely'" in own
    assert "allreduce" in own
    assert "no cell runs" in other
    assert "ValueError" in bundle["error.txt"]
    rows = bundle["iterations.csv"].splitlines()
    assert rows[0].startswith("cell,iteration,rank,iteration_us")
    ranks = [line.split(",")[2] for line in rows[1:]]
    assert (ranks.count("0"), ranks.count("1")) == (100, 100)
    assert "linear" in bundle["collectives.csv"] or "weight" in bundle["collectives.csv"]
    counts = bundle.json("collectives.json")
    assert counts["0"]["in_the_cell"]["at_request"]["current"] == "lonely"
    assert counts["0"]["recorded"]["iterations"] == 120
    started = counts["0"]["in_the_cell"]["at_request"]["started"]["0"]
    assert started > counts["1"]["in_the_cell"]["started_at_its_end"]["0"] > 100
    (folder,) = {name.split("/")[1] for name in bundle.parts if name.startswith("vms/")}
    assert f"vms/{folder}/sample.json" in bundle.parts
    assert isinstance(bundle.json(f"vms/{folder}/sample.json")["cpu"]["percent"], float)
    assert "none of" in bundle[f"vms/{folder}/doctor.txt"] or "found" in bundle["README.txt"]
    assert "nothing listens" in bundle.missing[f"vms/{folder}/nccl_ras.json"]
    assert "does not store cells" in bundle.missing["source.py"]
    assert bundle.manifest["reason"].endswith("failed on rank 1: ValueError.")
    assert bundle.manifest["versions"]["workbench"] == wb.__version__


def test_no_secret_is_in_a_bundle(pair):
    """Values of secret variables, assignments in messages, and the keys of the connections."""
    os.environ["LATER_API_KEY"] = SECRET[::2] * 2
    try:
        source = (
            "import os\n"
            "print(dict(os.environ))\n"
            "print('psql://me:pass1234@db/x', 'Authorization: Bearer abc.def-123')\n"
            f"raise ValueError('token={SECRET} key: ' + '{SECRET[::2] * 2}')"
        )
        text = completed(failed(pair, source).evidence).text
    finally:
        del os.environ["LATER_API_KEY"]
    for secret in (SECRET, SECRET[::-1], SECRET[::2] * 2, "pass1234", "abc.def-123"):
        assert secret not in text
    connection = pair._state.processes.engines.to_saved()["connection"]
    keys = [value for name, value in connection.items() if "key" in name and value]
    assert keys
    assert not [key for key in keys if key in text]
    assert "<removed>" in text


def test_a_hang_until_the_time_limit(pair):
    """Both stacks are from before the interrupt, and the output names the file once."""
    sink = TextSink()
    source = WAITS + "else:\n    import time\n    time.sleep(1000)"
    with pytest.raises(CellTimeout) as caught:
        pair.run(source, timeout=6, sink=sink)
    assert "No progress" in sink.text
    path = caught.value.evidence
    assert sink.text.count(f"Evidence: {path}") == 1
    bundle = completed(path)
    own, other = bundle["stacks.txt"].split("== rank 1")
    assert "in 'lonely'" in own
    assert "time.sleep(1000)" in other
    assert "was not done in time" in bundle.manifest["reason"]
    row = bundle.json("ranks.json")[0]
    assert row["state_at_request"]["collective"] == "lonely"
    assert row["newest_earlier_state"]["collective"] == "lonely"


@pytest.mark.soak
def test_the_bundle_of_a_stall_is_not_completed_after_an_error(pair, monkeypatch):
    """The VMs are asked for the newest bundle only, which is that of the error."""
    recorder, asked, go_on = pair._cells.evidence, [], threading.Event()
    complete = collect.complete

    def counted(bundle, *given):
        asked.append(bundle.reason)
        complete(bundle, *given)

    monkeypatch.setattr(collect, "complete", counted)
    recorder.submit(go_on.wait)
    sink = TextSink()
    source = WAITS + "else:\n    import time\n    time.sleep(4)\n    raise ValueError('late')"
    try:
        with pytest.raises(RanksFailed) as caught:
            pair.run(source, timeout=FAR_S, sink=sink)
        assert "Evidence: " in sink.text
    finally:
        go_on.set()
    bundle = completed(caught.value.evidence)
    recorder.wait()
    assert [reason for reason in asked if "ValueError" not in reason] == []
    assert "ValueError" in bundle.manifest["reason"]
    assert len(asked) == 1


@pytest.mark.parametrize("source", ["x = = 1", "raise KeyboardInterrupt", "input('x')"])
def test_an_error_of_the_source_leaves_no_file(pair, source):
    error = failed(pair, source)
    assert error.evidence is None
    assert "Evidence" not in str(error)


def test_on_demand_while_a_cell_runs(pair, tmp_path):
    """`Cluster.bundle` does not wait for the cell; it has the ranks' places and the output."""
    source, sink = "print('under way')\nimport time\nwhile True: time.sleep(0.01)", TextSink()
    future = pair.run_in_background(source, sink=sink)
    try:
        given = tmp_path / "here.zip"
        while "in cell" not in BundleFile(pair.bundle(given))["stacks.txt"]:
            pass
        assert eventually(lambda: "under way" in sink.text)
        assert "] under way\n" in BundleFile(pair.bundle(given))["output.txt"]
        assert pair.bundle() == evidence_file(pair.timings.path, "now")
    finally:
        future.interrupt()
        future.exception(timeout=FAR_S)
    with pytest.raises(wb.UsageError, match=r"cannot be written \(Not a directory\)"):
        pair.bundle(given / "x.zip")


def test_the_oldest_files_are_removed(pair):
    """A run keeps ten, however many cells fail."""
    paths = [completed(failed(pair, f"raise ValueError({n})").evidence).path for n in range(12)]
    assert not paths[0].exists()
    assert all(path.exists() for path in paths[-9:])
    assert len(evidence_files(pair.timings.path)) == 10
    assert not list(pair.timings.path.glob(".*"))


@pytest.mark.soak
def test_a_killed_rank(tmp_path):
    """How it ended, its last state, and the stack of the rank that waited for it."""
    mark, sink = tmp_path / "reported", TextSink()
    waiter = when(lambda: "Evidence: " in sink.text, mark.touch)
    with wb.Cluster(n=2, hang_after_s=1.0) as cluster:
        source = (
            "import os, signal, time\n"
            "def hold():\n"
            f"    while not os.path.exists({str(mark)!r}): time.sleep(0.02)\n"
            "if rank == 1:\n"
            "    hold()\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "hvd.barrier()"
        )
        with pytest.raises(RanksFailed) as caught:
            cluster.run(source, timeout=FAR_S, sink=sink)
        waiter.join()
        error = caught.value
        assert error.errors[1].name == "RankLost"
        bundle = completed(error.evidence)
    row = bundle.json("ranks.json")[1]
    assert row["end"]["code"] == -signal.SIGKILL
    assert row["end"]["how"] == "was killed by SIGKILL"
    assert "killed by SIGKILL" in row["state_at_request"]["unknown"]
    assert "was killed by SIGKILL:" in bundle["rank_logs.txt"]
    own, other = bundle["stacks.txt"].split("== rank 1")
    assert "barrier" in own
    assert "unknown: its process" in other
    assert "newest earlier state" in other
    assert "hold()" in other
    assert "killed by SIGKILL" in bundle.missing["stacks.txt: rank 1"]


def test_a_full_disk_is_reported_with_the_error(tmp_path):
    """The user's error comes first; nothing half-written stays."""
    with small_disk(tmp_path / "disk") as disk, wb.Cluster(n=2, runs=disk / "runs") as cluster:
        fill(disk)
        error = failed(cluster, "raise ValueError('boom')")
        assert "ValueError: boom" in str(error)
        assert error.evidence is None
        last = str(error).splitlines()[-1]
        assert last.startswith(f"Evidence: not written to {disk}")
        assert "No space left on device" in last
        assert not list(disk.rglob("*.part"))
