"""The steps of ``workbench build-horovod``, from request to tested installation."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.horovod_build import key as keys
from workbench.horovod_build.cache import WheelCache
from workbench.horovod_build.checking import Report, check
from workbench.horovod_build.compiling import Compile
from workbench.horovod_build.installing import install_needs, install_wheel
from workbench.horovod_build.machine import jobs, require_build_tools, this_machine
from workbench.horovod_build.operations import choose, missed_nccl
from workbench.horovod_build.progress import Progress, format_seconds
from workbench.horovod_build.recipe import VERSION
from workbench.horovod_build.smoke_test import run_smoke_test
from workbench.horovod_build.torchinfo import installed_torch
from workbench.horovod_build.wheelrecord import add_record

if TYPE_CHECKING:
    from workbench.horovod_build.machine import Machine
    from workbench.horovod_build.operations import Operations
    from workbench.horovod_build.torchinfo import TorchInfo


@dataclass(frozen=True)
class Request:
    """Options of a build.

    Attributes
    ----------
    wanted, unwanted
        Operations to require and to leave out: ``"gloo"``, ``"nccl"``, ``"mpi"``.
        Any other operation is built if this machine can build it.
    rebuild
        Compile even if the cache has the wheel.
    jobs
        Number of parallel compilers; None chooses it by cores and memory.
    """

    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    rebuild: bool = False
    jobs: int | None = None


@dataclass(frozen=True)
class Built:
    """Result of a build.

    Attributes
    ----------
    facts
        What the wheel was built from; `Report.built` returns the same later.
    wheel
        The wheel in the cache; None if the installed Horovod already fitted.
    compiled
        Whether the wheel was compiled now, rather than taken from the cache.
    seconds
        Duration of all steps.
    """

    facts: dict[str, Any]
    wheel: Path | None
    compiled: bool
    seconds: float

    def describe(self) -> str:
        """Return one line that says what was done."""
        names = ", ".join(self.facts["operations"])
        title = f"Horovod {VERSION} for PyTorch {self.facts['torch']} with {names}"
        if self.wheel is None:
            return f"{title} is installed already and fits."
        how = "compiled" if self.compiled else "taken from the cache"
        return (
            f"{title}: {how}, installed, and tested with a sum over two ranks, "
            f"in {format_seconds(self.seconds)}."
        )


def build(
    request: Request | None = None,
    progress: Progress | None = None,
    cache: WheelCache | None = None,
) -> Built:
    """Build Horovod against the installed PyTorch, install it and test it.

    Parameters
    ----------
    request
        Options; by default all operations that this machine can build.
    progress
        Receives progress messages; standard error by default.
    cache
        Where wheels are stored; the user's cache by default.

    Raises
    ------
    BuildFailed
        With its cause and what to do. The installed Horovod is unchanged, unless
        the last step (the smoke test) failed.
    UsageError
        If the request contradicts itself.
    """
    request, progress, cache = request or Request(), progress or Progress(), cache or WheelCache()
    started = time.monotonic()
    with progress:
        progress.step("inspecting this machine and its PyTorch")
        torch = installed_torch()
        operations = choose(torch, request.wanted, request.unwanted)
        if hint := missed_nccl(torch, operations):
            progress.say(hint)
        builder = _Builder(request, progress, cache, torch, operations)
        wheel, compiled = builder.run()
    return Built(builder.facts, wheel, compiled, time.monotonic() - started)


class _Builder:
    """The steps of a build, for one machine, PyTorch and set of operations."""

    def __init__(
        self,
        request: Request,
        progress: Progress,
        cache: WheelCache,
        torch: TorchInfo,
        operations: Operations,
    ) -> None:
        self._request, self._progress, self._cache = request, progress, cache
        self._torch, self._operations = torch, operations
        self._machine: Machine = this_machine()
        self.facts = keys.facts(torch, self._machine, operations)
        self._key = keys.key(self.facts)

    def run(self) -> tuple[Path | None, bool]:
        """Return the installed wheel and whether it was compiled; no wheel if none was needed."""
        if not self._request.rebuild and self._fits(check()):
            return None, False
        log = self._cache.log_path(self._key)
        install_needs(log)
        wheel, compiled = self._wheel(log)
        self._progress.step("installing")
        install_wheel(wheel, log)
        self._progress.step("testing it with a sum over two ranks")
        run_smoke_test()
        return wheel, compiled

    def _fits(self, report: Report) -> bool:
        return report.fits and report.built == self.facts

    def _wheel(self, log: Path) -> tuple[Path, bool]:
        """Return the wheel, and whether it was compiled rather than taken from the cache."""
        with self._cache.lock(self._key, self._report_waiting):
            cached = None if self._request.rebuild else self._cache.get(self._key)
            if cached is not None:
                return cached, False
            return self._compiled(log), True

    def _compiled(self, log: Path) -> Path:
        with tempfile.TemporaryDirectory(prefix="workbench-horovod-") as name:
            work = Path(name)
            require_build_tools(work)
            count = self._request.jobs or jobs()
            names = ", ".join(self._operations.names)
            self._progress.say(
                f"Building Horovod {VERSION} for PyTorch {self._torch.version} with {names}: "
                f"this takes some minutes, once. Log: {log}"
            )
            compiling = Compile(work, log, self._progress)
            wheel = compiling.wheel(self._torch, self._machine, self._operations, count)
            add_record(wheel, self.facts)
            return self._cache.put(self._key, wheel, self.facts)

    def _report_waiting(self) -> None:
        self._progress.say("Another process is building the same Horovod: waiting for it.")
