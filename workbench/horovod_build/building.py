"""The steps of ``workbench build-horovod``, from request to tested installation."""

from __future__ import annotations

import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.horovod_build.checking import check
from workbench.horovod_build.commands import install_requirements, install_wheel
from workbench.horovod_build.compiling import Compilation
from workbench.horovod_build.machine import installed_torch, jobs, this_machine
from workbench.horovod_build.operations import choose
from workbench.horovod_build.progress import Progress, format_seconds
from workbench.horovod_build.recipe import VERSION
from workbench.horovod_build.smoke_test import run_smoke_test
from workbench.horovod_build.wheels import WheelCache, add_record, facts, key

_log = logging.getLogger(__name__)

_WAITING = "Another process is building the same Horovod: waiting for it."


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
        Number of parallel compilers; None means as many as cores and memory permit.
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
        The facts that determine the wheel; later, `Report.built` has them.
    wheel
        The wheel in the cache; None if the installed Horovod already fits.
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
        """Return one line that describes what was done.

        Examples
        --------
        >>> facts = {"operations": {"gloo": "bundled"}, "torch": "2.13.0+cpu"}
        >>> Built(facts, None, compiled=False, seconds=1.2).describe()
        'Horovod 0.28.1 for PyTorch 2.13.0+cpu with gloo is installed already and fits.'
        """
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

    By default it builds all operations that this machine can, shows the progress on standard
    error, and stores the wheel in the user's cache.

    Raises
    ------
    BuildFailed
        If the build fails, with the cause and what to do. The installed Horovod is unchanged,
        unless the last step (the smoke test) failed.
    UsageError
        If the request contradicts itself.
    """
    request = request or Request()
    progress = progress or Progress()
    cache = cache or WheelCache()
    started = time.monotonic()
    with progress:
        progress.step("inspecting this machine and its PyTorch")
        torch = installed_torch()
        operations = choose(torch, request.wanted, request.unwanted)
        if operations.without_nccl:
            progress.print_line(operations.without_nccl)
        machine = this_machine()
        wanted = facts(torch, machine, operations)
        if not request.rebuild and _is_installed(wanted):
            _log.info("The installed Horovod fits PyTorch %s", torch.version)
            return Built(wanted, None, False, time.monotonic() - started)
        name = key(wanted)
        log = cache.log_path(name)
        install_requirements(log)
        with cache.lock(name, lambda: progress.print_line(_WAITING)):
            wheel = None if request.rebuild else cache.get(name)
            is_cached = wheel is not None
            _log.info("Wheel %s: %s", name, "in the cache" if is_cached else "to be compiled")
            if wheel is None:
                with tempfile.TemporaryDirectory(prefix="workbench-horovod-") as work:
                    compilation = Compilation(Path(work), log, progress)
                    built = compilation.wheel(torch, machine, operations, request.jobs or jobs())
                    add_record(built, wanted)
                    wheel = cache.put(name, built, wanted)
        progress.step("installing")
        install_wheel(wheel, log)
        progress.step("testing it with a sum over two ranks")
        run_smoke_test()
    seconds = time.monotonic() - started
    _log.info("Horovod %s is installed, after %s", name, format_seconds(seconds))
    return Built(wanted, wheel, not is_cached, seconds)


def _is_installed(wanted: dict[str, Any]) -> bool:
    report = check()
    return report.fits and report.built == wanted
