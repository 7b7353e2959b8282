"""The subcommands about recorded runs and use: ``workbench use|replay|bundle``; see `cli`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommands to the parser."""
    _add_use(commands)
    _add_replay(commands)
    _add_bundle(commands)


def _add_use(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "use",
        help="show how much of their allocated GPUs notebooks have used",
        description="Show for each day and notebook how much of the GPUs that its clusters had was "
        "used, and which were idle. It is recorded on this machine only; "
        "GRADIENT_WORKBENCH_USE=off ends that.",
    )
    command.add_argument("--days", type=int, default=7, help="of how many days (default: 7)")
    command.set_defaults(run=_use)


def _use(arguments: argparse.Namespace) -> int:
    from workbench.widgets.use import UseView

    print(UseView(arguments.days))
    return 0


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "replay",
        help="open JupyterLab with a notebook that replays a recorded run",
        description="Write a notebook that replays a recorded run in the live view and in the "
        "sidebar, and open it in JupyterLab. Run its cell to play.",
    )
    command.add_argument("recording", metavar="RUN", help="a run's name or folder, or .gwsession")
    command.add_argument("--speed", type=float, default=1.0, help="2 is twice as fast")
    command.add_argument(
        "--notebook", metavar="FILE", type=Path, help="only write the notebook, to this file"
    )
    command.set_defaults(run=_replay)


def _replay(arguments: argparse.Namespace) -> int:
    from workbench.demo import open_replay

    return open_replay(arguments.recording, arguments.speed, arguments.notebook)


def _add_bundle(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "bundle",
        help="write an evidence bundle of a recorded run",
        description="Write what is known about a recorded run and this machine into one zip file, "
        "for a report or an administrator. %%cluster bundle does it for a running cluster.",
    )
    command.add_argument("name", nargs="?", metavar="RUN", help="the newest run by default")
    command.add_argument("-o", "--out", metavar="FILE", help="by default evidence-RUN.zip here")
    command.set_defaults(run=_bundle)


def _bundle(arguments: argparse.Namespace) -> int:
    from workbench.cluster.evidence.stored import write_stored

    print(f"Evidence: {write_stored(arguments.name, arguments.out)}")
    return 0
