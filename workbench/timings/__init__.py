"""What arrived from the ranks: `receiver`, `store`, and the views of it.

`Timings` is the door while ranks train, `run` to what is kept of it on disk;
`answers` is what can be asked of both. `frame` makes tables, `summary` key
figures, `stragglers` names ranks that the others wait for, `compare` holds two
runs against each other.

On disk: `keeper` is the thread that writes, `writer` and `reader` know what is
in the files, `stream` and `schema` how, `folder` and `runs` where.
"""

from workbench.timings.store import COLUMNS
from workbench.timings.summary import Summary
from workbench.timings.timings import Timings

__all__ = ["COLUMNS", "Summary", "Timings"]
