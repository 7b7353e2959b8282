"""The facts about a run on disk, in addition to its timings."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from workbench.timings.folder import RunFolder
from workbench.timings.reader import RunReader


class RunFacts:
    """The facts about a run on disk: its name, cluster, ranks and state.

    A base class of `Run`.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._reader = RunReader(folder)

    @property
    def facts(self) -> dict[str, Any]:
        """All recorded facts about the run."""
        return self._reader.facts()

    @property
    def problems(self) -> list[str]:
        """Sentences on the data that could not be read so far, with the reasons."""
        return list(self._reader.problems)

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._folder.path

    @property
    def name(self) -> str:
        """The name that ``%timings open`` accepts."""
        return self.path.name

    @property
    def cluster(self) -> str:
        """The name of the cluster that trained."""
        return str(self.facts.get("cluster", "not known"))

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """The latest ranks as dicts with ``rank``, ``vm``, ``gpu``, ``nic`` and more."""
        return list(self.facts.get("ranks") or [])

    @property
    def simulated(self) -> bool:
        """Whether the run comes from a simulation, and was not recorded on VMs."""
        return bool(self.facts.get("simulated", False))

    def vm_names(self) -> dict[int, str]:
        """Return the host name of each rank's VM, where known."""
        return {
            int(facts["rank"]): str(facts["vm"])
            for facts in self.ranks
            if {"rank", "vm"} <= set(facts)
        }

    @property
    def started(self) -> datetime | None:
        """When the first iteration was written, in local time; None if unknown."""
        seconds = self.facts.get("started_s")
        return None if seconds is None else datetime.fromtimestamp(seconds).astimezone()

    @property
    def state(self) -> str:
        """``"running"`` while a kernel writes the run, ``"ended"``, or ``"cut off"``."""
        if self._folder.lock.in_use():
            return "running"
        return "ended" if "ended_s" in self.facts else "cut off"

    @property
    def size_bytes(self) -> int:
        """The total size of the files in bytes."""
        return self._folder.size_bytes()

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<Run {self.name}: cluster {self.cluster}, {self.state}>"
