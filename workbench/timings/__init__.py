"""What arrived from the ranks: `receiver`, `store`, and the views of it.

`Timings` is the door while ranks train, `run` to what is kept of it on disk;
`answers` is what can be asked of both. `frame` makes tables, `summary` key
figures, `service` infers what each collective took by itself, `compare` holds
two runs against each other, `export` gives all of it to other tools.

Who waited for whom: `clocks` (of one ring) and `cell_clocks` (of every ring, by
cell) put the ranks' times on the kernel's clock; `arrivals` notes when each rank
was ready, `lateness` says who waited, `stragglers` for whom and why, out of the
`noise`.

On disk: `keeper` is the thread that writes, `writer` and `reader` know what is
in the files, `stream` and `schema` how, `folder` and `runs` where.
"""

from workbench.timings.store import COLUMNS
from workbench.timings.summary import Summary
from workbench.timings.timings import Timings

__all__ = ["COLUMNS", "Summary", "Timings"]
