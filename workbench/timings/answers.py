"""What can be asked of timings, wherever they come from."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import fields
from typing import TYPE_CHECKING

from workbench.timings import arrivals, frame, stragglers
from workbench.timings.compare import Comparison, compare
from workbench.timings.export import Exports
from workbench.timings.summary import Summary, summarize

if TYPE_CHECKING:
    import pandas as pd


class Answers(Exports):
    """Answers from rows and records; what has them says where they come from.

    `Timings` has them from the ranks, `Run` from a run's files.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows that there ever were."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row per iteration and rank.

        Columns: iteration, rank, iteration_us, data_us, forward_us,
        backward_us, communication_us, exposed_us, optimizer_us, wait_us,
        bytes, tensors, algbw_gbps, busbw_gbps, overlap, other_us, copy_us. The
        phases data + copy + forward + backward + exposed + optimizer + other
        add up to the iteration. With a GPU, duration and phases are those of
        its stream, else of the host's clock. Communication is of all
        collectives, the cell's own included, with their queueing. NaN where a
        figure is not known.
        """
        return frame.iterations(self.rows())

    def collectives(self, first: int | None = None, last: int | None = None) -> pd.DataFrame:
        """Return one row per iteration, rank and collective; see `frame.collectives`.

        Parameters
        ----------
        first, last
            Iterations, both included. Without them: of the newest records, at
            most `store.COLLECTIVES_LIMIT`.
        """
        return frame.collectives(self.records(first, last))

    def stragglers(self) -> pd.DataFrame:
        """Return the stretches, and single iterations, in which the others waited for one rank.

        Columns: rank, phase, excess_us, first_iteration, last_iteration, kind,
        how_often, late_us, uncertainty_us; see `stragglers.Straggler`.
        """
        import pandas as pd

        names = [field.name for field in fields(stragglers.Straggler)]
        return pd.DataFrame(stragglers.find(self.rows()), columns=names)

    def arrivals(self) -> pd.DataFrame:
        """Return one row per iteration and rank: its arrival at the first and last collective.

        Columns: iteration, rank, first_us, last_us, late_us, uncertainty_us;
        see `arrivals.table`.
        """
        return arrivals.table(self.rows())

    def summary(self, latest: int | None = None) -> Summary:
        """Return the key figures of all iterations, or of the `latest`."""
        return summarize(self.rows(), latest)

    def compare(self, other: Answers) -> Comparison:
        """Hold another run's figures against these; see `compare.compare`."""
        return compare(self.rows(), other.rows(), (str(self), str(other)))
