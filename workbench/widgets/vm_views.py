"""What the panel is told of each VM of a cluster: what it has, what is wrong, what it uses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from workbench.doctor import Finding, diagnose
from workbench.resources import Snapshot, Unknown
from workbench.resources.codec import encode
from workbench.resources.usage import Sample

if TYPE_CHECKING:
    from workbench.cluster.agent import Agent
    from workbench.cluster.agent_channel import Question

WAIT_S = 0.9
"""A VM that has not answered after this long is told as unknown until it has."""

_RENEW_S = 60.0
"""Hardware and settings change rarely."""


class VmView:
    """One VM as its agent answers; nothing here waits for a VM that is slow.

    Parameters
    ----------
    agent
        Its agent; one that was lost is never asked again, its VM gets another.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.name = agent.name
        self.local = agent.local
        self.lost = agent.lost
        self._sample: Question | None = None
        self._ahead: Any = None
        self._used: dict[str, Any] | None = None
        self._look: Question | None = agent.post("snapshot")
        self._looked = time.monotonic()
        self.snapshot: Snapshot | None = None
        self._plain: dict[str, Any] = {}
        self._findings: list[Finding] = []
        # of the cluster's start, until the VM has told anew
        self._keep(agent.facts["snapshot"])

    # what it has

    def update(self) -> bool:
        """Take up what has come since the last time; whether there is anything to tell."""
        lost, self.lost = self.lost, self.agent.lost
        if self.lost:
            self._look = None
            return not lost
        if self._look is None:
            if time.monotonic() - self._looked >= _RENEW_S:
                self.look()
            return False
        if self._look.answer is None:
            return False
        plain = self.agent.answer(self._look, 0.0)
        self._look, self._looked = None, time.monotonic()
        if isinstance(plain, Unknown):
            return False
        self._keep(plain)
        return True

    def look(self) -> None:
        """Have the VM look anew at what it has, unless it does already."""
        if self._look is None and not self.lost:
            self._look = self.agent.post("snapshot")

    def wait(self, deadline: float) -> None:
        """Wait for its look."""
        if self._look is not None:
            self.agent.answer(self._look, deadline)

    def to_plain(self) -> dict[str, Any]:
        """Return its place in the message ``vms``."""
        return {
            "name": self.name,
            "local": self.local,
            "snapshot": {"unknown": self.lost} if self.lost else self._plain,
            "findings": [] if self.lost else encode(self._findings),
        }

    def _keep(self, plain: dict[str, Any]) -> None:
        try:
            self.snapshot = Snapshot.from_plain(plain)
            used = None if self._used is None else Sample.from_plain(self._used)
            # not `plain`: what was read has printable texts and finite numbers
            self._plain = self.snapshot.to_plain()
            self._findings = diagnose(self.snapshot, used)
        except Exception as error:  # noqa: BLE001 - the other VMs must be told of all the same
            self.snapshot, self._findings = None, []
            self._plain = encode(Unknown(f"cannot be read: {type(error).__name__}: {error}"))

    # what it uses

    def ask(self) -> None:
        """Ask for a sample, unless a question is on its way: to a slow VM nothing piles up."""
        self._ahead = None
        asked = self._sample
        if self.lost or (asked is not None and asked.answer is None):
            return
        if asked is not None and asked.took_s > WAIT_S:
            self._ahead = self.agent.answer(asked, 0.0)
        self._sample = self.agent.post("sample")

    def sample(self, deadline: float) -> Any:
        """Return the sample as plain JSON; waits only for what was asked just now."""
        if self.lost:
            return {"unknown": self.lost}
        if self._ahead is None:
            assert self._sample is not None
            fresh = time.monotonic() - self._sample.asked < WAIT_S
            self._ahead = self.agent.answer(self._sample, deadline if fresh else 0.0)
        self._used = None if isinstance(self._ahead, Unknown) else self._ahead
        return encode(self._ahead) if self._used is None else self._used
