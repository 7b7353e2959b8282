"""Timings as Arrow tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import UsageError
from workbench.timings.derive import columns
from workbench.timings.frame import collectives

if TYPE_CHECKING:
    import pyarrow as pa

    from workbench.timings.export.door import Exports

_UNITS = {"_us": "microseconds", "_gbps": "10^9 bits per second"}


def table(run: Exports, what: str) -> pa.Table:
    """Return the iterations or the collectives of `run`; see `Exports.to_arrow`."""
    import pyarrow as pa

    if what == "iterations":
        rows = run.rows()
        given: Any = columns(rows[np.lexsort((rows["rank"], rows["iteration"]))])
    elif what == "collectives":
        given = collectives(run.records())
    else:
        raise UsageError(f"to_arrow({what!r}): no such table. Write 'iterations' or 'collectives'.")
    # from pandas: a float's NaN is "not known", which is null in Arrow
    arrays = [pa.array(given[name], from_pandas=True) for name in given]
    fields = [
        pa.field(name, array.type, metadata=_unit(name))
        for name, array in zip(given, arrays, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _unit(name: str) -> dict[str, str] | None:
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), None)
    if name == "bytes":
        unit = "bytes"
    return {"unit": unit} if unit else None
