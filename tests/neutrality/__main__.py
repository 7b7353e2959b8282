"""Prints a table of trainings: what two plain runs, and cells without and with recording, give.

    python -m tests.neutrality [--backend BACKEND] [--ranks RANKS] [NAME...]

A digest is of the states of all ranks. A run that differs from the first plain one is marked, with
the parts of the state that differ.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from .ranks import ENVIRONMENT, CellRanks, PlainRanks, failed
from .trainings.kinds import MODULES, names
from .trainings.state import digest

HEADINGS = ("training", "ranks", "plain", "plain again", "not recorded", "recorded", "iterations")


def main():
    """Print the table of all trainings, or of those that were named."""
    parser = argparse.ArgumentParser(prog="python -m tests.neutrality")
    parser.add_argument("--backend", choices=MODULES, action="append")
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    print("|", " | ".join(HEADINGS), "|")
    print("|---" * len(HEADINGS) + "|")
    for backend in options.backend or MODULES:
        for n in options.ranks or (2, 3):
            chosen = [name for name in names(backend) if name in (options.names or names(backend))]
            print_rows(backend, n, chosen)


def print_rows(backend, n, chosen):
    """Print the rows of a backend and a number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        cells, plain = CellRanks(backend, n), PlainRanks(backend, n, Path(folder))
        try:
            for name in chosen:
                first, again = plain.run(name), plain.run(name)
                recorded, counts = cells.run(name, recording=True)
                unrecorded, _ = cells.run(name, recording=False)
                digests = [described(run, first) for run in (first, again, unrecorded, recorded)]
                iterations = " ".join(str(counts.get(rank, 0)) for rank in range(n))
                row = (f"{backend} {name}", str(n), *digests, iterations)
                print("|", " | ".join(row), "|", flush=True)
        finally:
            plain.close()
            cells.close()


def described(states, first):
    """Return what the table shows of a run."""
    if failed(states):
        errors = {state["error"] for state in states.values() if "error" in state}
        text = "; ".join(sorted(errors)).replace("\n", " ").replace("|", "/")[:120]
    else:
        text = digest(sorted(states.items()))
    if states == first:
        return text
    differing = {
        part
        for rank, state in first.items()
        for part in state
        if states.get(rank, {}).get(part) != state[part]
    }
    return f"**{text}** ({', '.join(sorted(differing))})"


if __name__ == "__main__":
    main()
