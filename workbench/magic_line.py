"""Parse the lines of magics."""

from __future__ import annotations

import re
from typing import Any

from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.magic_arguments import parse_argstring

from workbench.errors import UsageError

_COMMENT = re.compile(r"""("[^"]*"|'[^']*')|(?:^|(?<=\s))#.*""")
"""A quoted value, which is kept, or a comment: IPython passes comments on to a magic."""


def parse_line(magic: Any, line: str) -> Any:
    """Parse a magic's line without its comment.

    Parameters
    ----------
    magic
        The method of a magic, with the parser of ``magic_arguments``.
    line
        The text after the magic's name.

    Raises
    ------
    UsageError
        The line is not valid.

    Examples
    --------
    >>> from workbench.fabric_magics import FabricMagics
    >>> args = parse_line(FabricMagics.fabric, "calibrate --seconds '30 s'  # once")
    >>> args.verb, args.seconds
    ('calibrate', '30 s')
    """
    line = _COMMENT.sub(lambda match: match[1] or "", line).rstrip()
    try:
        args = parse_argstring(magic, line)
    except (IPythonUsageError, ValueError) as error:
        problem = str(error).rstrip(".")
        command = f"%{magic.__name__} {line}".rstrip()
        raise UsageError(f"{command}: {problem}. See %{magic.__name__}?") from None
    for name, value in vars(args).items():  # IPython splits at quotes but keeps them
        setattr(
            args,
            name,
            [*map(_without_quotes, value)] if isinstance(value, list) else _without_quotes(value),
        )
    return args


def _without_quotes(value: Any) -> Any:
    """Return a value without its surrounding quotes, if it has any."""
    quoted = isinstance(value, str) and len(value) > 1 and value[0] == value[-1] in "'\""
    return value[1:-1] if quoted else value
