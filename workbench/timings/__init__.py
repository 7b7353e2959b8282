"""What arrived from the ranks: `receiver`, `store`, and the views of it.

`Timings` is the door; `frame` makes tables, `summary` key figures.
`clocks` (of one ring) and `cell_clocks` (of every ring, by cell) put the
ranks' times on the kernel's clock; `arrivals` notes when each rank was ready,
`lateness` says who waited, `stragglers` for whom and why, out of the `noise`.
"""

from workbench.timings.store import COLUMNS
from workbench.timings.summary import Summary
from workbench.timings.timings import Timings

__all__ = ["COLUMNS", "Summary", "Timings"]
