"""``python -m tests.truth [GROUP ...]``: compare figures with the truth, and write the page."""

import argparse
import faulthandler
import os
import signal
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path

from tests.truth.table import Table, page

GROUPS = {
    **{name: f"{name}.measure" for name in ("arithmetic", "training", "buckets", "wire")},
    **{name: f"{name}.measure" for name in ("timeline", "links")},
    **{name: f"planted.{name}" for name in ("stragglers", "causes", "predictions")},
}
"""The function that measures each group."""
PAGE = Path(__file__).parents[2] / "docs" / "proof" / "truth.md"
MAX_CHARACTERS = 200
"""Most characters of an error on the page."""
LIMIT_S = 420
"""A group that takes longer is interrupted, and named as not measured."""


def interrupted(*_):
    """End a group that takes too long."""
    faulthandler.dump_traceback(all_threads=True)
    raise TimeoutError(f"it took longer than {LIMIT_S} s")


def measure(table, groups):
    """Measure each group; one that fails does not end the others."""
    signal.signal(signal.SIGALRM, interrupted)
    for name in groups:
        began = time.monotonic()
        print(f"{name}...", flush=True)
        signal.alarm(LIMIT_S)
        try:
            module, function = GROUPS[name].split(".")
            getattr(import_module(f"tests.truth.{module}"), function)(table)
        except Exception as error:  # noqa: BLE001 - the page names it
            traceback.print_exc()
            words = " ".join(str(error).split()).replace("|", "/")[:MAX_CHARACTERS]
            table.fail(name, f"the measurement failed: {type(error).__name__}: {words}")
        finally:
            signal.alarm(0)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


def main():
    """Return 0 if all figures that were asked for are within their bounds."""
    parser = argparse.ArgumentParser(prog="python -m tests.truth", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--out", type=Path, help=f"the page; {PAGE} if all groups are measured")
    parser.add_argument(
        "--plant", type=float, default=0.0, metavar="TIMES",
        help="make each shown figure wrong by so many times its bound: none may be within it",
    )  # fmt: skip
    parser.add_argument("--pairs", type=Path, help="a CSV file for all figures and truths")
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"{', '.join(sorted(unknown))}: no group. Choose from {', '.join(GROUPS)}.")
    groups = options.groups or GROUPS
    table, before, began = Table(options.plant), os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for variable in ("GRADIENT_WORKBENCH_RUNS", "XDG_STATE_HOME", "JUPYTER_RUNTIME_DIR"):
            os.environ[variable] = str(Path(folder) / variable)
        measure(table, groups)
    text = page(table, (before, os.getloadavg()[0]), time.monotonic() - began)
    out = options.out or (PAGE if not options.groups and not options.plant else None)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
    if options.pairs is not None:
        table.write_pairs(options.pairs)
    print(text)
    rows = [row for row in table.rows() if row.kind.group in groups]
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
