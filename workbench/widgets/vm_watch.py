"""Send the panel the state of a cluster's VMs while a panel is open."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.doctor import Finding, diagnose, diagnose_all
from workbench.resources import Snapshot, Unknown
from workbench.resources.codec import encode
from workbench.resources.usage import Sample

if TYPE_CHECKING:
    from workbench.cluster.agent import Agent
    from workbench.cluster.agent_channel import Question
    from workbench.fabric import Hop
    from workbench.ranks import RankInfo

_log = logging.getLogger(__name__)

WAIT_S = 0.9
"""A VM that does not answer within this time is shown as unknown until it answers."""

LAPSE_S = 12.0
"""A panel without a renewed request for this time counts as closed; it renews every 4 s."""

_PERIOD_S = 1.0
_SNAPSHOT_INTERVAL_S = 60.0
"""Interval between snapshots, because hardware and settings change rarely."""
_OFF = float("-inf")
"""The end of watching while no panel is open."""
_REPEAT_S = 3.0
"""Interval between descriptions of the VMs while a cell runs.

A page that is reloaded during a cell can listen but cannot send requests. It shows no devices until
a description arrives. A description has about 12 kB per VM.
"""


class VmWatch:
    """A thread that polls the VMs while they are watched.

    Parameters
    ----------
    send
        Sends a message to the panel; called from any thread.
    agents
        Returns the agents of the cluster's VMs, empty without a cluster.
    cell_runs
        Returns whether a cell is running.
    ranks
        Returns the cluster's ranks in the order of their ring, empty without a cluster.
    """

    def __init__(
        self,
        send: Callable[[dict[str, Any]], None],
        agents: Callable[[], Sequence[Agent]],
        cell_runs: Callable[[], bool],
        ranks: Callable[[], Sequence[RankInfo]],
    ) -> None:
        self._send = send
        self._agents = agents
        self._cell_runs = cell_runs
        self._ranks = ranks
        self._ring_keys: list[tuple[object, ...]] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._watch_until = _OFF
        self._views: list[VmView] = []
        self._sent_description: dict[str, Any] | None = None
        self._sent_at = float("-inf")
        self._last_error = ""

    # Called from any thread

    def renew(self) -> None:
        """Start or continue watching."""
        with self._lock:
            if self._watch_until == _OFF:
                self._sent_description = None  # a new panel has not received the description
            self._watch_until = time.monotonic() + LAPSE_S
            if self._thread is None:
                self._wake.clear()
                self._thread = threading.Thread(target=self._run, name="workbench-vms", daemon=True)
                self._thread.start()
                _log.debug("started to watch the VMs")

    def stop(self) -> None:
        """Stop watching."""
        with self._lock:
            self._watch_until = _OFF
        self._wake.set()

    def refresh(self) -> None:
        """Send the last description to a new page, and request new snapshots of all VMs."""
        self._sent_description = None
        for view in list(self._views):
            view.refresh()
        self._wake.set()

    # The thread

    def _run(self) -> None:
        due = time.monotonic()
        while self._is_watched():
            try:
                self._tick()
            except Exception as error:  # noqa: BLE001 - a failed round must not end the thread
                self._send_error(f"cannot describe the VMs: {type(error).__name__}: {error}")
            due = max(due + _PERIOD_S, time.monotonic())
            if self._wake.wait(due - time.monotonic()):
                self._wake.clear()
                due = time.monotonic()

    def _is_watched(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if self._watch_until != _OFF and self._cell_runs():
                self._watch_until = max(self._watch_until, now + LAPSE_S)
            if now < self._watch_until:
                return True
            self._thread = None
            self._views = []
            self._sent_description = None
            _log.debug("stopped watching the VMs")
            return False

    def _tick(self) -> None:
        began = time.monotonic()
        ranks = self._ranks()
        old_ring_keys = self._ring_keys
        self._ring_keys = [_ring_key(rank) for rank in ranks]
        changed = self._update_views(self._agents()) or old_ring_keys != self._ring_keys
        remote_views = [view for view in self._views if not view.local]
        for view in remote_views:
            view.request_sample()
        if self._sent_description is None:  # the first message waits briefly for current snapshots
            for view in self._views:
                view.wait(began + WAIT_S)
        for view in self._views:
            changed |= view.update()
        self._send_vms(changed, ranks)
        samples = {view.name: view.sample(began + WAIT_S) for view in remote_views}
        if samples:
            self._send({"type": "samples", "samples": samples})

    def _update_views(self, agents: Sequence[Agent]) -> bool:
        """Keep one view per current agent; return whether the agents have changed."""
        if [view.agent for view in self._views] == list(agents):
            return False
        old_views = {view.agent: view for view in self._views}
        self._views = [old_views.get(agent) or VmView(agent) for agent in agents]
        return True

    def _send_vms(self, changed: bool, ranks: Sequence[RankInfo]) -> None:
        now = time.monotonic()
        message = self._sent_description
        if changed or message is None:
            message = {"type": "vms", **describe(self._views, ranks)}
        elif not (self._views and self._cell_runs() and now - self._sent_at >= _REPEAT_S):
            return
        self._sent_description = message
        self._sent_at = now
        self._send(message)

    def _send_error(self, text: str) -> None:
        if text != self._last_error:
            _log.debug("a round of watching failed: %s", text)
            self._last_error = text
            self._send({"type": "error", "message": text})


def describe(views: Sequence[VmView], ranks: Sequence[RankInfo]) -> dict[str, Any]:
    """Return the VMs, the findings between them and the ring's weakest hop as plain JSON."""
    snapshots = {
        view.name: view.snapshot for view in views if view.snapshot is not None and not view.lost
    }
    return {
        "vms": [view.to_plain() for view in views],
        "findings": encode(diagnose_all(snapshots)),
        "weakest": encode(_weakest(ranks, snapshots)),
    }


def _weakest(ranks: Sequence[RankInfo], snapshots: Mapping[str, Snapshot]) -> Hop | Unknown | None:
    """Return the weakest hop of the ranks' ring; None if there is no ring."""
    if len(ranks) < 2:
        return None
    # Imported here, because it imports many modules that only a watching panel needs.
    from workbench.fabric import weakest_hop

    try:
        return weakest_hop(ranks, snapshots)
    except Exception as error:  # noqa: BLE001 - the VMs must still be shown
        return Unknown(f"cannot be determined: {type(error).__name__}: {error}")


def _ring_key(rank: RankInfo) -> tuple[object, ...]:
    """Return the properties of a rank that determine the ring."""
    return rank.rank, rank.vm, rank.gpu, rank.nic


class VmView:
    """One VM of a cluster, as the panel shows it.

    Only `wait` and `sample` wait for the VM, and only until a deadline.

    Parameters
    ----------
    agent
        The agent of the VM. A lost agent is not queried again; the VM then gets another agent.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.name = agent.name
        self.local = agent.local
        self.lost = agent.lost
        self._sample_request: Question | None = None
        self._sample: Any = None
        self._usage_sample: dict[str, Any] | None = None
        self._snapshot_request: Question | None = agent.post("snapshot")
        self._snapshot_at = time.monotonic()
        self.snapshot: Snapshot | None = None
        self._plain: dict[str, Any] = {}
        self._findings: list[Finding] = []
        # The snapshot from the start of the cluster is shown until the VM answers.
        self._store(agent.facts.snapshot)

    # Hardware and findings

    def update(self) -> bool:
        """Process answers that have arrived; return whether anything changed."""
        was_lost = self.lost
        self.lost = self.agent.lost
        if self.lost:
            self._snapshot_request = None
            if not was_lost:
                _log.info("%s: the agent was lost", self.name)
            return not was_lost
        if self._snapshot_request is None:
            if time.monotonic() - self._snapshot_at >= _SNAPSHOT_INTERVAL_S:
                self.refresh()
            return False
        if self._snapshot_request.answer is None:
            return False
        plain = self.agent.answer(self._snapshot_request, 0.0)
        self._snapshot_request = None
        self._snapshot_at = time.monotonic()
        if isinstance(plain, Unknown):
            return False
        self._store(plain)
        return True

    def refresh(self) -> None:
        """Request a new snapshot, unless a request is pending."""
        if self._snapshot_request is None and not self.lost:
            self._snapshot_request = self.agent.post("snapshot")

    def wait(self, deadline: float) -> None:
        """Wait for the pending snapshot."""
        if self._snapshot_request is not None:
            self.agent.answer(self._snapshot_request, deadline)

    def to_plain(self) -> dict[str, Any]:
        """Return the VM's entry in the message ``vms``."""
        return {
            "name": self.name,
            "local": self.local,
            "snapshot": {"unknown": self.lost} if self.lost else self._plain,
            "findings": [] if self.lost else encode(self._findings),
        }

    def _store(self, plain: dict[str, Any]) -> None:
        try:
            self.snapshot = Snapshot.from_plain(plain)
            sample = None if self._usage_sample is None else Sample.from_plain(self._usage_sample)
            # `plain` is not used, because decoding made texts printable and numbers finite.
            self._plain = self.snapshot.to_plain()
            self._findings = diagnose(self.snapshot, sample)
        except Exception as error:  # noqa: BLE001 - the other VMs must still be shown
            self.snapshot = None
            self._findings = []
            self._plain = encode(Unknown(f"cannot be read: {type(error).__name__}: {error}"))

    # Current use

    def request_sample(self) -> None:
        """Request a sample, unless a request is pending, so that requests do not accumulate."""
        self._sample = None
        request = self._sample_request
        if self.lost or (request is not None and request.answer is None):
            return
        if request is not None and request.took_s > WAIT_S:
            self._sample = self.agent.answer(request, 0.0)
        self._sample_request = self.agent.post("sample")

    def sample(self, deadline: float) -> Any:
        """Return the sample as plain JSON; wait only for a request that was just sent."""
        if self.lost:
            return {"unknown": self.lost}
        if self._sample is None:
            assert self._sample_request is not None
            was_just_sent = time.monotonic() - self._sample_request.asked < WAIT_S
            self._sample = self.agent.answer(
                self._sample_request, deadline if was_just_sent else 0.0
            )
        self._usage_sample = None if isinstance(self._sample, Unknown) else self._sample
        return encode(self._sample) if self._usage_sample is None else self._usage_sample
