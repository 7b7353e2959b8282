"""The whole of ``workbench build-horovod``, step by step."""

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
from workbench.horovod_build.machine import jobs, require_parts, this_machine
from workbench.horovod_build.operations import choose, missed_nccl
from workbench.horovod_build.progress import Progress, spell_seconds
from workbench.horovod_build.proof import prove
from workbench.horovod_build.recipe import VERSION
from workbench.horovod_build.torchinfo import installed_torch
from workbench.horovod_build.wheelrecord import add_record

if TYPE_CHECKING:
    from workbench.horovod_build.machine import Machine
    from workbench.horovod_build.operations import Operations
    from workbench.horovod_build.torchinfo import TorchInfo


@dataclass(frozen=True)
class Request:
    """What is asked of a build.

    Attributes
    ----------
    wanted, unwanted
        Operations that must be in, and that must stay out: of ``"gloo"``,
        ``"nccl"``, ``"mpi"``. What is in neither is built where it can be.
    rebuild
        Compile even where the cache has the wheel.
    jobs
        Compilers at once; None leaves it to cores and memory.
    """

    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    rebuild: bool = False
    jobs: int | None = None


@dataclass(frozen=True)
class Built:
    """What a build left.

    Attributes
    ----------
    facts
        What the wheel was built from, as `Report.built` gives it later.
    wheel
        The wheel in the cache; None where the installed Horovod was right
        already and nothing was done.
    compiled
        Whether it was compiled now, rather than taken from the cache.
    seconds
        For everything.
    """

    facts: dict[str, Any]
    wheel: Path | None
    compiled: bool
    seconds: float

    def describe(self) -> str:
        """Return what was done in a line for a person."""
        names = ", ".join(self.facts["operations"])
        what = f"Horovod {VERSION} for PyTorch {self.facts['torch']} with {names}"
        if self.wheel is None:
            return f"{what} is installed already and fits."
        how = "compiled" if self.compiled else "taken from the cache"
        return (
            f"{what}: {how}, installed, and proved by a sum over two ranks, "
            f"in {spell_seconds(self.seconds)}."
        )


def build(
    request: Request | None = None,
    progress: Progress | None = None,
    cache: WheelCache | None = None,
) -> Built:
    """Build Horovod against the installed PyTorch, install it and prove it.

    Parameters
    ----------
    request
        The choices; all that this machine can do by default.
    progress
        Who is told; standard error by default.
    cache
        Where wheels are kept; the user's cache by default.

    Raises
    ------
    BuildFailed
        With the cause and the cure; the environment's Horovod stays as it was
        unless the last step, the proof, is what failed.
    UsageError
        Where the request contradicts itself.
    """
    request, progress, cache = request or Request(), progress or Progress(), cache or WheelCache()
    began = time.monotonic()
    with progress:
        progress.step("looking at this machine and its PyTorch")
        torch = installed_torch()
        operations = choose(torch, request.wanted, request.unwanted)
        if hint := missed_nccl(torch, operations):
            progress.say(hint)
        builder = _Builder(request, progress, cache, torch, operations)
        wheel, compiled = builder.run()
    return Built(builder.facts, wheel, compiled, time.monotonic() - began)


class _Builder:
    """The steps that share what was found about the machine."""

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
        """Return the installed wheel (None where nothing was to do), and whether it is new."""
        if not self._request.rebuild and self._fits(check()):
            return None, False
        log = self._cache.log_path(self._key)
        install_needs(log)
        wheel, compiled = self._wheel(log)
        self._progress.step("installing")
        install_wheel(wheel, log)
        self._progress.step("proving it: a sum over two ranks")
        prove()
        return wheel, compiled

    def _fits(self, report: Report) -> bool:
        return report.fits and report.built == self.facts

    def _wheel(self, log: Path) -> tuple[Path, bool]:
        """Return the wheel from the cache, or a new one, and whether it is new."""
        with self._cache.lock(self._key, self._tell_waiting):
            kept = None if self._request.rebuild else self._cache.get(self._key)
            if kept is not None:
                return kept, False
            return self._compiled(log), True

    def _compiled(self, log: Path) -> Path:
        with tempfile.TemporaryDirectory(prefix="workbench-horovod-") as name:
            work = Path(name)
            require_parts(work)
            count = self._request.jobs or jobs()
            names = ", ".join(self._operations.names)
            self._progress.say(
                f"Building Horovod {VERSION} for PyTorch {self._torch.version} with {names}: "
                f"some minutes, once. Log: {log}"
            )
            compiling = Compile(work, log, self._progress)
            wheel = compiling.wheel(self._torch, self._machine, self._operations, count)
            add_record(wheel, self.facts)
            return self._cache.put(self._key, wheel, self.facts)

    def _tell_waiting(self) -> None:
        self._progress.say("Another process is building the same Horovod: waiting for it.")
