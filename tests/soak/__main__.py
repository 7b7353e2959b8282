"""``python -m tests.soak``: play random faults, and say what they cost."""

import argparse
import contextlib
import faulthandler
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from workbench.testbed import vms, why_not

from . import clock, report
from .levels import MARK
from .sites import Site, small_disk
from .soaking import PLANTS, Soak

HANG_S = 400.0
"""A fault that takes longer ends the run."""
SAVE_EVERY = 10
WARM_UP = 60


def arguments():
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    add = parser.add_argument
    add("--faults", type=int, default=1000, help="how many (default: 1000)")
    add("--seed", type=int, default=None, help="which ones (default: at random, and printed)")
    add("--backend", choices=("horovod", "ddp", "all"), default="all")
    add("--where", choices=("local", "vms", "all"), default="all")
    add("--minutes", type=float, default=None, help="no other fault after this time")
    add("--only", type=int, default=None, help="the number of one fault, which is played twice")
    add("--plant", choices=tuple(PLANTS), nargs="*", default=(), help="defects to be found")
    add("--out", type=Path, default=None, help="a file for the table (default: print it)")
    return parser.parse_args()


def with_clock():
    """Start this program again with a clock that can be stepped, and a mark on its processes."""
    if MARK in os.environ:
        return
    os.environ[MARK] = secrets.token_hex(8)
    if clock.why_not() is None:
        os.environ.update(clock.environment(Path(tempfile.mkdtemp(prefix="soak-clock-"))))
    os.execv(sys.executable, [sys.executable, "-m", "tests.soak", *sys.argv[1:]])


def sites(given, stack):
    """Return the places of a run."""
    machines = None
    if given.where != "local":
        if (reason := why_not()) is not None:
            sys.exit(f"--where {given.where}: {reason}. Use --where local.")
        machines = stack.enter_context(vms(3))
    return [
        Site(where, backend, machines if where == "vms" else None)
        for where in ("local", "vms")
        for backend in ("horovod", "ddp")
        if given.where in {where, "all"} and given.backend in {backend, "all"}
    ]


def watched(soak, save):
    """Return a function to be called before each fault; a fault that hangs ends the run."""
    timers = []

    def hangs():
        faulthandler.dump_traceback()
        save(f"hangs for {HANG_S:g} s: {soak.playing}")
        os._exit(3)

    def again():
        for timer in timers:
            timer.cancel()
        timers[:] = [threading.Timer(HANG_S, hangs)]
        timers[0].daemon = True
        timers[0].start()

    return again


def main():
    """Play the faults, print or write the table; the exit status is 1 after a failure."""
    given = arguments()
    with_clock()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.environ.setdefault("HOROVOD_CYCLE_TIME", "5")
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    numbers = range(given.faults) if given.only is None else [given.only, given.only]
    command = f"python -m tests.soak {' '.join(sys.argv[1:])}"
    date, load = time.strftime("%Y-%m-%d %H:%M"), os.getloadavg()[0]
    print(f"seed {seed}", flush=True)
    outcomes = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        (folder / "tmp").mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
        os.environ["GRADIENT_WORKBENCH_RUNS"] = str(folder / "runs")
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        if clock.is_loaded():
            library = Path(os.environ["LD_PRELOAD"]).parent
            stack.callback(shutil.rmtree, library, ignore_errors=True)
        disk = stack.enter_context(small_disk(folder / "disk"))
        soak = Soak(seed, sites(given, stack), folder, disk, given.plant)
        left_out = {str(site): list(site.kinds()[1].items()) for site in soak.sites}

        def save(hung=""):
            now = os.getloadavg()[0]
            loads = f"{load:.1f} at the begin, {now:.1f} at the end"
            head = report.header(seed, command, loads, date)
            text = report.text(outcomes, head, left_out, len(numbers), WARM_UP)
            text += f"\nThe run has ended early: {hung}\n" if hung else ""
            if given.out is None:
                print(text, flush=True)
            else:
                given.out.write_text(text)

        before_each = watched(soak, save)
        ends = time.monotonic() + 60 * given.minutes if given.minutes else float("inf")
        for count, number in enumerate(numbers, 1):
            if time.monotonic() > ends:
                break
            before_each()
            outcome = soak.play(number)
            outcomes.append(outcome)
            print(f"{outcome.recovery_s:6.2f} s, {outcome.memory_mb:6.1f} MB: {outcome.site}: "
                  f"{outcome.fault}", flush=True)  # fmt: skip
            if outcome.wrong:
                print(f"FAILED: {outcome.wrong}", flush=True)
            if given.out is not None and count % SAVE_EVERY == 0:
                save()
        before_each()
        for site in soak.sites:
            site.stop()
        save()
    too_much = report.memory(outcomes, WARM_UP)[1]
    return int(too_much or any(one.wrong for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
