"""A recorded run that plays in the panel and in a live view, as if it were a live cluster."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from weakref import WeakSet

from workbench.cluster import Cluster, registry
from workbench.cluster.agent_channel import Question
from workbench.errors import ClusterError, UsageError, WorkbenchError
from workbench.ranks import RankInfo
from workbench.resources import Snapshot, Unknown
from workbench.timings.replay import Recording, ReplayClock, ReplayTimings, checked_speed
from workbench.timings.run import open_run
from workbench.timings.runs import FolderLike
from workbench.timings.samples import RecordedSample
from workbench.timings.verdict import Verdict
from workbench.widgets.cluster_source import ClusterSource
from workbench.widgets.earlier_runs import earlier_runs
from workbench.widgets.source import Status

_log = logging.getLogger(__name__)

_TICK_S = 0.1
_MAX_SAMPLE_AGE = 3
"""Maximum age of a sample that is shown, in intervals between stored samples."""
_MESSAGE_INTERVAL_S = 1.0
"""Interval between changes of the message."""

_replays: WeakSet[Any] = WeakSet()
"""The replays that this process has started."""


class Replay:
    """A recording in the place of a cluster: the panel and the live view show it as a cluster.

    The replay becomes the notebook's current cluster, so that the panel shows it. The names of the
    replay and of its VMs contain "recorded", or "simulated" if no VM was measured. A replay cannot
    run cells.

    Parameters
    ----------
    run
        The name of a run, its folder, or a session file.
    speed
        How many seconds of the recording pass in one second, up to 100.

    Raises
    ------
    RunError
        There is no such run.
    UsageError
        The run has no iterations and no samples, or the speed is not valid.
    """

    fabric = None
    profiling = SimpleNamespace(state="none", latest=None)

    def __init__(self, run: FolderLike, speed: float = 1.0) -> None:
        self.recording = Recording(open_run(run))
        recording = self.recording
        if not len(recording.rows) and not recording.samples:
            raise UsageError(f"{run}: has no iterations and no samples. Choose another run.")
        self.kind = "simulated" if recording.run.simulated else "recorded"
        self.name = f"{recording.run.name} ({self.kind})"
        self.clock = ReplayClock(recording.end_s - recording.begin_s)
        self.speed = speed
        self.timings = ReplayTimings(recording)
        self.ranks = [_rank(plain, self.kind) for plain in recording.run.ranks]
        self.n = len(self.ranks)
        self.options = SimpleNamespace(identity=object(), keep_s=None, remote=False, record=True)
        snapshots = recording.run.snapshot().items()
        self._snapshots = {f"{vm} ({self.kind})": snapshot for vm, snapshot in snapshots}
        self._agents = _replayed_vms(self, self._snapshots)
        self._listeners: list[Callable[[], None]] = []
        self._stopped = threading.Event()
        self._last_message_s = 0.0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="workbench-replay", daemon=True)

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and hasattr(Cluster, name):
            raise ClusterError(
                f"{self.name}: a recording, which has no ranks for {name}. "
                "End it with %cluster stop."
            )
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"{self.name}: {self.message}"

    # Attributes of a cluster

    @property
    def state(self) -> str:
        """``"running"`` while the replay plays, ``"ready"`` while paused, or ``"stopped"``."""
        if self._stopped.is_set():
            return "stopped"
        return "running" if self.clock.playing else "ready"

    @property
    def message(self) -> str:
        """The time of day that is shown, and the position, in one line."""
        if self._stopped.is_set():
            return f"the replay of {self.kind} data has ended"
        time_of_day = time.strftime("%H:%M:%S", time.localtime(self.time_s))
        passed, length = map(clock_text, (self.clock.position_s, self.clock.length_s))
        paused = "" if self.clock.playing else ", paused"
        return f"{time_of_day}, {self.kind}: {passed} of {length}{paused}"

    @property
    def agents(self) -> tuple[ReplayedVm, ...]:
        """The replayed VMs, which answer in place of agents; empty after the end."""
        return () if self._stopped.is_set() else self._agents

    @property
    def time_s(self) -> float:
        """The time of day that is shown, in seconds since the epoch."""
        return self.recording.begin_s + self.clock.position_s

    def snapshot(self) -> dict[str, Snapshot]:
        """Return the snapshot of each VM, by the name that is shown."""
        return self._snapshots

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after changes; return a function that unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def stop(self) -> None:
        """End the replay."""
        self._stopped.set()
        _log.debug("%s: stopped at %.1f s", self.name, self.clock.position_s)
        self.timings.closed = True
        self._notify()

    # Controls of the replay

    def start(self) -> Replay:
        """Make the replay the notebook's current cluster, and play.

        Raises
        ------
        ClusterError
            A cluster runs in this notebook.
        """
        current = registry.current()
        if current is not None and current.state not in {"stopped", "stopping"}:
            if current not in _replays:
                raise ClusterError(
                    f"{self.name}: {current.name} runs in this notebook. Stop it first with "
                    "%cluster stop."
                )
            current.stop()
        _replays.add(self)
        registry.set_current(cast("Cluster", self))
        self.play()
        self._thread.start()
        _log.debug("%s: started at speed %g", self.name, self.speed)
        return self

    @property
    def speed(self) -> float:
        """How many seconds of the recording pass in one second."""
        return self.clock.speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self.clock.speed = checked_speed(speed)

    def play(self) -> None:
        """Continue to play; at the end, play from the start."""
        if self.clock.position_s >= self.clock.length_s:
            self.seek(0.0)
        self.clock.play()
        self._advance()
        self._notify()

    def pause(self) -> None:
        """Pause."""
        self.clock.pause()
        self._advance()
        self._notify()

    def seek(self, position_s: float) -> None:
        """Move to a position in seconds since the start."""
        with self._lock:
            is_backward = position_s < self.clock.position_s
            self.clock.seek(position_s)
            if is_backward:  # new timings make views discard their rows
                self.timings = ReplayTimings(self.recording)
        self._advance()
        self._notify()

    # Progress of the replay

    def _run(self) -> None:
        while not self._stopped.wait(_TICK_S):
            self._advance()

    def _advance(self) -> None:
        """Add the rows up to the current position; notify listeners if the message changes."""
        playing = self.clock.playing
        with self._lock:
            self.timings.advance(self.time_s, playing=playing)
        now = time.monotonic()
        if playing and now - self._last_message_s >= _MESSAGE_INTERVAL_S:
            self._last_message_s = now
            self._notify()
        elif (
            not playing and self._last_message_s
        ):  # the replay was paused or has ended since the last call
            self._last_message_s = 0.0
            self._notify()

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()


class ReplayedVm:
    """A VM of a recording, which answers like its agent during the run; see `cluster.agent.Agent`.

    `now_s` returns the time of day that is shown. `interval_s` returns the interval between stored
    samples at a time. All times are in seconds.
    """

    local = False
    lost = ""
    reconnecting = False

    def __init__(
        self,
        name: str,
        snapshot: Snapshot | None,
        samples: list[RecordedSample],
        now_s: Callable[[], float],
        interval_s: Callable[[float], float],
    ) -> None:
        self.name = name
        plain = None if snapshot is None else snapshot.to_plain()
        self.facts = SimpleNamespace(snapshot=plain)
        self._samples = samples
        self._now_s = now_s
        self._interval_s = interval_s

    def post(self, kind: str) -> Question:
        """Answer a question at once; see `answer`."""
        question = Question()
        question.answer = cast("Any", self._sample() if kind == "sample" else self._snapshot())
        return question

    def answer(self, question: Question, _deadline: float) -> Any:
        """Return the answer to a question of `post`."""
        return question.answer

    def _snapshot(self) -> Any:
        return self.facts.snapshot or Unknown("this run has no snapshot of it")

    def _sample(self) -> Any:
        now_s = self._now_s()
        oldest_s = now_s - _MAX_SAMPLE_AGE * self._interval_s(now_s)
        recent_samples = [
            recorded for recorded in self._samples if oldest_s < recorded.time_s <= now_s
        ]
        if not recent_samples:
            time_of_day = time.strftime("%H:%M:%S", time.localtime(now_s))
            return Unknown(f"no sample was recorded at {time_of_day}")
        sample = recent_samples[-1].sample
        # The sample gets the time of the replay, because the panel expects a sample each second.
        return sample if isinstance(sample, Unknown) else replace(sample, time=now_s).to_plain()


class ReplaySource(ClusterSource):
    """The timings of a recording as a `TimingSource`."""

    def __init__(self, replay: Replay) -> None:
        super().__init__(cast("Cluster", replay))
        self._replay = replay

    def status(self) -> Status:
        """Return the run's state, with the replay's message."""
        return replace(super().status(), message=f"{self._replay!r}.")

    def earlier_runs(self) -> tuple[str, ...]:
        """Return the names of stored runs, the newest first, without the played run."""
        return earlier_runs(self._replay.recording.run.path)

    def explain(self) -> Verdict | Unknown:
        """Return what slowed down the whole recorded run."""
        from workbench.advisor import verdict

        try:
            return verdict(self._replay.recording.run)
        except WorkbenchError as error:
            return Unknown(str(error))


def _rank(plain: dict[str, Any], kind: str) -> RankInfo:
    """Return a rank from its entry in ``run.json``, with the VM's name that is shown."""
    defaults = {"rank": 0, "vm": "VM not known", "pid": 0, "threads": 0}
    names = [field.name for field in fields(RankInfo)]
    values = {name: plain.get(name, defaults.get(name, "")) for name in names}
    return RankInfo(**values | {"vm": f"{values['vm']} ({kind})", "state": "ready"})


def _replayed_vms(replay: Replay, snapshots: Mapping[str, Snapshot]) -> tuple[ReplayedVm, ...]:
    """Return the VMs of a replay, from its ranks, snapshots and samples."""
    samples_by_vm: dict[str, list[RecordedSample]] = {}
    for recorded in replay.recording.samples:
        samples_by_vm.setdefault(f"{recorded.vm} ({replay.kind})", []).append(recorded)
    names = dict.fromkeys([*(info.vm for info in replay.ranks), *snapshots, *samples_by_vm])
    return tuple(
        ReplayedVm(
            name,
            snapshots.get(name),
            samples_by_vm.get(name, []),
            lambda: replay.time_s,
            replay.recording.sample_interval_s,
        )
        for name in names
    )


def clock_text(seconds: float) -> str:
    """Return a duration as minutes and seconds, with hours if there are any.

    Examples
    --------
    >>> clock_text(75.9)
    '01:15'
    >>> clock_text(3675)
    '1:01:15'
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
