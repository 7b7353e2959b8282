"""The magic ``%fabric``: measured rates of links, and predictions for other links."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from workbench.errors import UsageError
from workbench.magic_line import parse_line

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_VERBS = ("show", "calibrate", "matrix", "whatif", "scaling", "compare")
_OPTIONS = (
    ("calibrate", "seconds", "stored"),
    ("scaling", "ranks", "label"),
    ("scaling", "gbps", "save"),
    ("scaling", "repeats"),
)
"""Verbs, each with options that only this verb accepts."""


@magics_class
class FabricMagics(Magics):
    """``%fabric`` and ``%%fabric scaling``."""

    @magic_arguments()
    @argument("verb", nargs="?", choices=_VERBS, default="show", help="what to do")
    @argument(
        "name",
        nargs="?",
        help="show: a snapshot or topology file; whatif: a recorded run; "
        "compare: the file of a scaling study",
    )
    @argument("other", nargs="?", help="compare: the file of the other study")
    @argument("--seconds", default=None, metavar="TIME", help="calibrate: 30s by default")
    @argument("--stored", action="store_true", help="calibrate: use the stored calibration")
    @argument("--ranks", default=None, metavar="LIST", help="scaling: numbers of ranks, 1,2,4")
    @argument("--label", default="", help="scaling: name of the study")
    @argument(
        "--gbps",
        type=float,
        default=None,
        metavar="RATE",
        help="scaling: rate of the VMs' links in Gbit/s, by default that of their NICs",
    )
    @argument("--repeats", type=int, default=None, metavar="N", help="scaling: runs of each size")
    @argument("--save", default=None, metavar="FILE", help="scaling: file for the study")
    @line_cell_magic
    def fabric(self, line: str, cell: str | None = None) -> Any:
        """Show the bandwidth of each link, and the weakest hop of the ring.

        ``%fabric show FILE`` shows those of the VM that a file describes. ``%fabric calibrate``
        measures the time of allreduces by size, for advice and predictions, and
        ``%fabric matrix`` the bandwidth of each pair of VMs, which names slow links.
        ``%fabric whatif`` shows what an iteration would take on another fabric.
        ``%%fabric scaling --ranks 1,2,4 --save tcp.json`` runs the cell at each size, and
        ``%fabric compare tcp.json rdma.json`` compares two studies, such as of a bare host and of
        VMs.
        """
        args = parse_line(self.fabric, line)
        _check(args, line, cell)
        from workbench.widgets import fabric_view

        if args.verb == "scaling":
            return fabric_view.scaling_view(cell or "", _sizes(args.ranks, line), args)
        if args.verb == "compare":
            return fabric_view.comparison_view(args.name, args.other)
        if args.verb == "whatif":
            from workbench.widgets.study import what_if_view

            return what_if_view(args.name)
        return fabric_view.fabric_view(args)


def _check(args: Any, line: str, cell: str | None) -> None:
    """Raise `UsageError` if arguments do not fit the verb."""
    if (args.verb == "scaling") != (cell is not None):
        raise UsageError(
            f"%fabric {line}: only scaling runs a cell. Write %%fabric scaling --ranks 1,2,4 "
            "above a training cell."
        )
    for verb, *names in _OPTIONS:
        if args.verb != verb and any(getattr(args, name) for name in names):
            options = " and ".join(f"--{name}" for name in names)
            raise UsageError(
                f"%fabric {line}: {options} {'are' if len(names) > 1 else 'is'} for {verb}. "
                f"Remove {'them' if len(names) > 1 else 'it'}."
            )
    if args.verb not in ("show", "whatif", "compare") and args.name:
        raise UsageError(f"%fabric {line}: {args.verb} accepts no name. Remove {args.name}.")
    if (args.verb == "compare") != (args.other is not None):
        raise UsageError(
            f"%fabric {line}: compare needs two files, and no other verb accepts two. Write "
            "%fabric compare tcp.json rdma.json."
        )


def _sizes(text: str | None, line: str) -> list[int]:
    """Return the numbers of ranks of a scaling study.

    Examples
    --------
    >>> _sizes("1,2,4", "scaling --ranks 1,2,4")
    [1, 2, 4]
    """
    if text is None or not re.fullmatch(r"[1-9]\d{0,3}(,[1-9]\d{0,3})*", text):
        raise UsageError(f"%%fabric {line}: --ranks must be numbers of ranks. Write --ranks 1,2,4.")
    return [int(number) for number in text.split(",")]


def register(shell: InteractiveShell) -> None:
    """Register the magic, and how notebooks show its results."""
    from workbench.widgets import fabric_view

    shell.register_magics(FabricMagics)
    fabric_view.register(shell.display_formatter)
