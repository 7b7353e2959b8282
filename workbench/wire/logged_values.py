"""The values that a cell logs with its iterations, such as its loss."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.errors import WireError
from workbench.wire.message import Message
from workbench.wire.vm_messages import are_ranks


@dataclass(frozen=True)
class LoggedValues(Message):
    """Values of some iterations of one rank and cell. Each column has one item per value.

    Attributes
    ----------
    cell
        Number of the cell.
    iterations
        Numbers of the iterations within the cell, as `IterationRecord.index`.
    names, values
        The logged names and values; a value may be infinite or NaN.
    """

    cell: int
    iterations: tuple[int, ...]
    names: tuple[str, ...]
    values: tuple[float, ...]

    def check(self) -> LoggedValues:
        """Return this message after checking it.

        Raises
        ------
        WireError
            The columns differ in length, or a number is negative.
        """
        counts = {len(self.iterations), len(self.names), len(self.values)}
        if len(counts) > 1 or min((self.cell, *self.iterations)) < 0:
            raise WireError(
                f"Logged values of cell {self.cell}: damaged, as they have between {min(counts)} "
                f"and {max(counts)} items, or a negative number."
            )
        return self


@dataclass(frozen=True)
class VmLoggedValues(Message):
    """Values that several ranks of a VM have logged, with the rank of each."""

    ranks: tuple[int, ...]
    logged: tuple[LoggedValues, ...]

    def check(self) -> VmLoggedValues:
        """Return the message, or raise WireError if it is damaged."""
        if len(self.ranks) != len(self.logged) or not are_ranks(self.ranks):
            raise WireError(
                f"Logged values of a VM: damaged, as its {len(self.ranks)} ranks are wrong."
            )
        for values in self.logged:
            values.check()
        return self
