"""The command line: ``workbench build-horovod`` and its siblings.

Each subcommand is a pair: one function adds its options to the parser, one
runs it and returns the exit status, importing its room only then.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import __version__
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.resources import Snapshot


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status.

    Parameters
    ----------
    argv
        The arguments after the program's name; those of the process by default.
    """
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except WorkbenchError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="workbench", description="What gradient communication costs, live in Jupyter."
    )
    parser.add_argument("--version", action="version", version=f"workbench {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_resources(commands)
    _add_doctor(commands)
    _add_build_horovod(commands)
    _add_demo(commands)
    return parser


def _add_resources(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "resources",
        help="show the GPUs, NICs and limits of this VM",
        description="Show the GPUs, NICs and limits that this VM was given; what cannot be read "
        "is shown with its reason.",
    )
    command.add_argument("--json", action="store_true", help="as JSON, to send and load elsewhere")
    command.add_argument("--file", help="a snapshot written by --json, instead of this VM")
    command.set_defaults(run=_resources)


def _resources(arguments: argparse.Namespace) -> int:
    snapshot = _snapshot(arguments.file)
    print(snapshot.to_json() if arguments.json else snapshot)
    return 0


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "doctor",
        help="find what is set up wrong in this VM, and the cure",
        description="Find what is set up wrong in this VM, why it costs, and the setting that "
        "cures it. The exit status is 1 where an error was found.",
    )
    command.add_argument("--file", help="a snapshot written by `resources --json`")
    command.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from workbench.doctor import describe, diagnose

    snapshot = _snapshot(arguments.file)
    findings = diagnose(snapshot)
    print(describe(snapshot, findings))
    return 1 if any(finding.severity == "error" for finding in findings) else 0


def _snapshot(file: str | None) -> Snapshot:
    from workbench.resources import Snapshot, take_snapshot

    return take_snapshot() if file is None else Snapshot.load(file)


def _add_build_horovod(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "build-horovod",
        help="build Horovod against the installed PyTorch, install and prove it",
        description="Build Horovod against the installed PyTorch, install it here, and prove it "
        "with a sum over two ranks. The wheel is kept in the user's cache.",
    )
    operations = ("gloo", "nccl", "mpi")
    command.add_argument(
        "--check", action="store_true", help="only say what is installed and whether it fits"
    )
    command.add_argument(
        "--with", dest="wanted", action="append", default=[], choices=operations,
        help="fail unless this operation can be built (may be repeated)",
    )  # fmt: skip
    command.add_argument(
        "--without", dest="unwanted", action="append", default=[], choices=operations,
        help="leave this operation out (may be repeated)",
    )  # fmt: skip
    command.add_argument("--rebuild", action="store_true", help="compile even if the cache has it")
    command.add_argument("--jobs", type=_positive, help="compilers at once (by cores and memory)")
    command.set_defaults(run=_build_horovod)


def _build_horovod(arguments: argparse.Namespace) -> int:
    from workbench.horovod_build import Request, build, check

    if arguments.check:
        report = check()
        print(report.describe())
        return 0 if report.fits else 1
    request = Request(
        wanted=tuple(arguments.wanted),
        unwanted=tuple(arguments.unwanted),
        rebuild=arguments.rebuild,
        jobs=arguments.jobs,
    )
    print(build(request).describe())
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "demo",
        help="run the quickstart notebook and print what communication cost",
        description="Run the quickstart notebook without a browser: two ranks train on this "
        "machine. Prints the summary, and writes the executed notebook as HTML.",
    )
    command.add_argument("--notebook", type=Path, help="another notebook (a clone's quickstart)")
    command.add_argument(
        "--html", type=Path, default=Path("build/quickstart.html"), help="where to write the page"
    )
    command.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from workbench.demo import NOTEBOOK, run_demo

    result = run_demo(arguments.html, arguments.notebook or NOTEBOOK)
    print(result.summary)
    print(f"\nThe executed notebook: {result.html.resolve()}")
    return 0
