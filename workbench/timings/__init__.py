"""What arrived from the ranks: `receiver`, `store`, and the views of it.

`Timings` is the door; `frame` makes tables, `summary` key figures,
`stragglers` names ranks that the others wait for, `export` gives all of it to
other tools.
"""

from workbench.timings.store import COLUMNS
from workbench.timings.summary import Summary
from workbench.timings.timings import Timings

__all__ = ["COLUMNS", "Summary", "Timings"]
