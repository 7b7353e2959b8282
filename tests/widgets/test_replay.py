"""A recorded run plays as if it were live: in the live view, and in the panel."""

import json
import os
import shlex
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from recorded_training import Training
from sessions import simulated
from timers import InThread, eventually

import workbench as wb
from workbench.cluster import registry
from workbench.errors import ClusterError, RunError, UsageError
from workbench.resources import Unknown
from workbench.timings.folder import RunFolder
from workbench.timings.samples import PER_INTERVAL, PERIOD_S
from workbench.timings.session_file import pack
from workbench.widgets.live import LiveView
from workbench.widgets.panel import describe
from workbench.widgets.replay import Replay, ReplaySource
from workbench.widgets.replay_view import ReplayView
from workbench.widgets.vm_watch import VmWatch
from workbench.wire.logged_values import LoggedValues

SESSIONS = Path(__file__).parents[2] / "docs" / "sessions"
HOST = SESSIONS / "hgx-8gpu.gwsession"
VMS = SESSIONS / "two-vms.gwsession"


@pytest.fixture
def replay():
    """Start replays, and end them after the test."""
    begun = []

    def begin(path=HOST, **options):
        begun.append(Replay(path, **options))
        return begun[-1]

    yield begin
    for one in begun:
        one.stop()
    registry.set_current(None)


def test_the_view_shows_what_had_arrived_by_then(replay):
    """At each position, the view has the iterations that had ended, and no later ones."""
    one = replay()
    source = ReplaySource(one)
    assert source.status().state == "waiting"
    one.seek(10.05)
    run = source.status().run
    assert source.window(1 << 16).rows == 8 * 50  # 200 ms each
    one.seek(59.0)
    assert source.status().run == run
    summary = source.summary()
    assert summary.slowest_rank == 5
    one.seek(20.0)  # back: another run for the view, so that it discards later iterations
    assert source.status().run != run
    assert source.window(1 << 16).rows == 8 * 100
    assert not isinstance(source.summary().slowest_rank, int)


def test_it_plays_at_a_speed_and_pauses(replay):
    """Iterations arrive while it plays, to the end; none while it is paused."""
    one = replay(speed=20.0)
    source = ReplaySource(one)
    one.start()
    assert eventually(lambda: source.status().state == "running")
    assert one.state == "running"
    one.pause()
    position = one.clock.position_s
    assert one.state == "ready"
    assert "paused" in source.status().message
    time.sleep(0.3)
    assert one.clock.position_s == position
    one.speed = 100.0
    one.play()
    assert eventually(lambda: source.status().state == "ended")
    recorded = len(wb.open_run(HOST).rows())
    assert source.window(1 << 16).rows == recorded
    one.play()  # from the start
    assert one.clock.position_s < one.clock.length_s


def test_everything_says_that_it_is_a_recording(replay):
    """The names in the panel and the view say recorded, or simulated where nothing was measured."""
    for path, word in ((HOST, "(simulated)"), (VMS, "(recorded)")):
        one = replay(path)
        plain = describe(one)
        assert word in plain["name"]
        assert all(word in rank["vm"] for rank in plain["ranks"])
        assert all(word in vm.name for vm in one.agents)
        assert word in ReplaySource(one).status().message
        assert all(word in place.vm for place in ReplaySource(one).status().ranks)
        assert word in LiveView(ReplaySource(one))._repr_mimebundle_()["text/html"]


def test_the_panel_gets_its_vms_and_samples(replay):
    """The panel's own watch describes the VMs, and has the samples of the time shown."""
    one = replay()
    one.seek(31.0)
    messages = []
    watch = VmWatch(messages.append, lambda: one.agents, lambda: False, lambda: one.ranks)
    watch.renew()
    try:
        assert eventually(lambda: [m for m in messages if m["type"] == "samples"])
    finally:
        watch.stop()
    (vm,) = next(m for m in messages if m["type"] == "vms")["vms"]
    assert vm["name"] == "hgx-1 (simulated)"
    assert len(vm["snapshot"]["gpus"]) == 8
    sample = [m for m in messages if m["type"] == "samples"][-1]["samples"][vm["name"]]
    recorded = {each.time_s: each.sample for each in one.recording.samples}
    then = recorded[one.recording.begin_s + 30.0]
    assert [gpu["utilization_percent"] for gpu in sample["gpus"]] == [
        gpu.utilization_percent for gpu in then.gpus
    ]
    assert not [m for m in messages if m["type"] == "error"]


def test_a_time_without_samples_is_unknown(replay):
    """Where nothing was recorded, the panel gets the reason and not the last sample."""
    one = replay()
    vm = one.agents[0]
    vm._samples = vm._samples[:2]
    one.seek(30.0)
    assert "no sample was recorded at" in vm.answer(vm.post("sample"), 0.0).reason


@pytest.mark.slow
def test_it_takes_the_place_of_the_cluster(replay):
    """It is the current cluster until it is stopped; it runs no cells and replaces no cluster."""
    one = replay().start()
    assert registry.current() is one
    with pytest.raises(ClusterError, match="a recording, which has no ranks for run"):
        registry.required().run("1")
    with pytest.raises(ClusterError, match="Stop it first with %cluster stop"):
        registry.start(2)
    other = replay(VMS).start()
    assert one.state == "stopped"
    assert registry.stop() is other
    assert other.agents == ()
    with wb.Cluster(n=1, backend="ddp") as cluster:
        registry.set_current(cluster)
        with pytest.raises(ClusterError, match="runs in this notebook"):
            replay().start()


def test_two_vms_were_real():
    """The recorded session has the timings, the hardware and the samples of two VMs."""
    run = wb.open_run(VMS)
    assert not run.simulated
    assert len(run.ranks) == 4
    assert set(run.snapshot()) == {"vm1", "vm2"}
    assert {one.vm for one in run.recorded_samples()} == {"vm1", "vm2"}
    assert VMS.stat().st_size < 300_000


@pytest.mark.slow
def test_the_simulated_session_is_up_to_date(tmp_path):
    """Its script writes the same rows and samples."""
    made, kept = wb.open_run(simulated(tmp_path / "again")), wb.open_run(HOST)
    assert made.simulated
    assert kept.simulated
    assert (made.rows() == kept.rows()).all()
    assert made.recorded_samples() == kept.recorded_samples()
    assert HOST.stat().st_size < 300_000


@pytest.mark.parametrize("speed", [0.0, -1.0, 101.0, float("nan")])
def test_a_wrong_speed_is_refused(replay, speed):
    """The error says which speeds there are."""
    with pytest.raises(UsageError, match="Give more than 0, up to 100"):
        replay(speed=speed)


def test_files_that_are_no_session_are_refused(tmp_path):
    """A damaged file, and an archive with other names, are refused and leave nothing behind."""
    damaged = tmp_path / "a.gwsession"
    damaged.write_bytes(HOST.read_bytes()[:5000])
    with pytest.raises(RunError, match="cannot be read as a session"):
        wb.open_run(damaged)
    odd = tmp_path / "b.gwsession"
    with zipfile.ZipFile(odd, "w") as archive:
        archive.writestr("../outside.json", "{}")
    with pytest.raises(RunError, match=r"not a session file \(it has '../outside.json'\)"):
        wb.open_run(odd)
    assert not (tmp_path.parent / "outside.json").exists()


@pytest.mark.parametrize(
    ("offset", "value", "why"), [(8, 1, "is encrypted"), (10, 14, "is compressed otherwise")]
)
def test_a_session_that_cannot_be_unpacked_is_refused(tmp_path, offset, value, why):
    """An encrypted archive, and one of another compression, which may be damaged."""
    path = tmp_path / "a.gwsession"
    content = bytearray(HOST.read_bytes())
    entry = content.index(b"PK\x01\x02")  # the first one of the directory at the end
    content[entry + offset] = value
    path.write_bytes(content)
    with pytest.raises(RunError, match=rf"not a session file \(.* {why}\)"):
        wb.open_run(path)


def test_a_session_is_written_for_this_user_alone(tmp_path):
    """Also where a part was left behind; files with times that ZIP lacks are written too."""
    folder = tmp_path / "run"
    with zipfile.ZipFile(HOST) as archive:
        archive.extractall(folder)
    os.utime(next(folder.iterdir()), (0, 0))
    left = tmp_path / "a.gwsession.part"
    left.write_text("")
    left.chmod(0o644)
    path = pack(RunFolder(folder), tmp_path / "a")
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(wb.open_run(path)) == len(wb.open_run(HOST))


@pytest.mark.slow
def test_the_command_writes_a_notebook(tmp_path):
    """`workbench replay` writes a notebook whose cell plays the session."""
    file = tmp_path / "replay.ipynb"
    command = [sys.executable, "-m", "workbench", "replay", str(HOST), "--speed", "5"]
    subprocess.run([*command, "--notebook", str(file)], check=True)
    (cell,) = [one for one in json.loads(file.read_text())["cells"] if one["cell_type"] == "code"]
    assert "".join(cell["source"]) == (
        f"%load_ext workbench\n%timings replay {shlex.quote(str(HOST))} --speed 5"
    )
    file.write_text("notes")
    for path, why in ((file, "it exists. Name a new file."), (tmp_path / "a" / "b", "Name a file")):
        wrong = [*command, "--notebook", str(path)]
        again = subprocess.run(wrong, check=False, capture_output=True, text=True)
        assert again.returncode
        assert why in again.stderr
        assert "Traceback" not in again.stderr
    assert file.read_text() == "notes"


def test_logged_values_arrive_with_their_iterations(replay, monkeypatch, tmp_path):
    """At each position, the view has what was logged until then; none twice, also after a seek."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_RUNS", str(tmp_path / "runs"))
    training = Training()
    for number in range(3):
        value = LoggedValues(training.cell + 1, (0,), ("loss",), (float(number),))
        training.outboxes[0].send(value)
        training.train(2)
    training.close()
    one = replay(training.timings.path)
    wanted = wb.open_run(training.timings.path).logged()
    times_s = one.recording.row_times_s - one.recording.begin_s
    assert times_s[-1] > 0
    for position_s in (*times_s, times_s[2], *times_s):
        one.seek(position_s)
        found = one.timings.logged()
        arrived = {row["iteration"] for row in one.timings.rows() if row["rank"] == 0}
        assert found.names == wanted.names
        assert set(found.values["iteration"].tolist()) == arrived & {0, 2, 4}
        assert len(found.values) == len(arrived & {0, 2, 4})


def test_samples_of_a_long_run_stay_until_the_next(replay, monkeypatch, tmp_path):
    """The interval between stored samples doubles after two hours of cells, and again."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_RUNS", str(tmp_path / "runs"))
    training = Training()
    training.train(1)
    begin_s = time.time()
    end_s = begin_s + PERIOD_S * PER_INTERVAL * 8
    for number, time_s in enumerate(np.arange(begin_s, end_s, PERIOD_S).tolist()):
        training.timings.samples.add(time_s, {"vm1": Unknown(str(time_s))})
        if number % 3000 == 0:
            training.train(1)  # also writes the samples
    training.close()
    one = replay(training.timings.path)
    (vm,) = (each for each in one.agents if each.name == "vm1 (recorded)")
    for position_s in np.linspace(10.0, one.clock.length_s - 1, 500).tolist():
        one.seek(position_s)
        assert "no sample was recorded" not in vm.answer(vm.post("sample"), 0.0).reason


def test_a_seek_while_the_position_is_shown_is_not_lost(replay):
    """The user moves the slider at the moment at which another thread updates it."""
    one = replay()
    view = ReplayView(one)
    view._controls()
    one.pause()
    moved = []

    def move(_):
        if not moved:
            moved.append(True)
            InThread(setattr, view._position, "value", 40.0).join()

    view._position.observe(move, "value")
    one.seek(20.0)
    view.close()
    assert one.clock.position_s == 40.0
