"""The arguments of an `argparse` parser as a table."""

import argparse

from generate.tables import code, prose, table


def arguments_of(parser: argparse.ArgumentParser) -> str:
    """Return a table of the arguments of a parser, without ``--help``."""
    rows = [
        (code(_name(action)), _help(action))
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    ]
    return table(("argument", "meaning"), rows) if rows else ""


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        value = str(action.metavar or action.dest)
        return {"?": f"[{value}]", "*": f"[{value} ...]", "+": f"{value} ..."}.get(
            str(action.nargs), value
        )
    if action.nargs == 0:
        return ", ".join(action.option_strings)
    value = str(action.metavar or action.dest.upper())
    return f"{', '.join(action.option_strings)} {value}"


def _help(action: argparse.Action) -> str:
    """Return the help and the choices, and the default where the help does not name it."""
    text = (action.help or "").replace("%%", "%")
    if action.choices:
        choices = ", ".join(code(str(choice)) for choice in action.choices)
        text = f"{text}: {choices}" if text else choices
    default = action.default
    shown = default not in (None, False, [], "", argparse.SUPPRESS) and action.nargs != 0
    if shown and "default" not in text:
        text = f"{text} (default: {default})".strip()
    return prose(text)
