"""The command line: ``workbench build-horovod`` and its siblings.

Each subcommand is a pair: one function adds its options to the parser, one
runs it and returns the exit status, importing its room only then.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from workbench import __version__
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    _add_build_horovod(commands)
    return parser


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
