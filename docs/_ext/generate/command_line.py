"""The command line, from its parsers."""

import argparse

from generate.options import arguments_of
from generate.tables import prose
from workbench.cli import make_parser


def markdown() -> str:
    """Return a section for each command."""
    sections = []
    for name, command in commands().items():
        usage = " ".join(command.format_usage().removeprefix("usage: ").split())
        sections += [
            f"## `workbench {name}`",
            prose((command.description or "").replace("%%", "%")),
            f"```text\n{usage}\n```",
            arguments_of(command),
        ]
    return "\n\n".join(sections)


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands by name."""
    (found,) = (
        action
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(found.choices)
