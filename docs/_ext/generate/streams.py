"""The columns of the Arrow streams of a run, from their schemas."""

import pyarrow as pa

from generate.records import attributes
from generate.tables import code, table
from workbench.timings import arrow_files
from workbench.wire import Flag, IterationRecord, Layout

STREAMS: dict[str, tuple[str, pa.Schema]] = {
    "iterations": ("A row per iteration and rank.", arrow_files.row_schema()),
    "offsets": (
        "A row per iteration and rank whose clock offset was measured again later.",
        arrow_files.row_schema(arrow_files.OFFSET_COLUMNS),
    ),
    "collectives": (
        "A row per iteration and rank, with the times of its collectives.",
        arrow_files.schema_of(IterationRecord, *arrow_files.RECORD_KEYS),
    ),
    "layouts": (
        "A row per layout: the names and sizes of the collectives in the lists of `collectives`.",
        arrow_files.schema_of(Layout, *arrow_files.LAYOUT_KEYS),
    ),
    "logged": ("A row per value that a cell has logged (`wb.log`).", arrow_files.LOGGED),
    "samples": ("A row per VM and sample of its use.", arrow_files.SAMPLES),
}
_OWN = {
    "iteration": "Number of the iteration, across all cells of the run.",
    "rank": "Number of the rank.",
    "start_ns": "When it began, on the rank's clock.",
    "iteration_ns": "How long it took.",
    "first_ns": "From its start until its first collective was submitted.",
    "last_ns": "From its start until its last collective was submitted.",
    "done_ns": "From its start until its last collective had finished.",
    "bytes": "Bytes that its collectives have sent.",
    "process_set": "Number of the process set of all its collectives; 0 is all ranks.",
    "peers": "Ranks in that process set.",
    "offset_ns": "Added to the rank's clock it gives the kernel's clock.",
    "uncertainty_ns": "Largest error of that; infinite if the offset is unknown.",
    "layout_key": "Key of the layout in `layouts`.",
    "key": "Key of the layout, to which `layout_key` in `collectives` refers.",
    "name": "Name of the value.",
    "value": "The value; a tensor is read as a number.",
    "time_s": "Seconds since the epoch.",
    "vm": "Name of the VM.",
    "sample": 'JSON text of a sample (below), or of `{"unknown": reason}`.',
    "flags": "How the figures are to be understood, in bits: "
    + ", ".join(f"{flag.value} {flag.name}" for flag in Flag if flag.value)
    + ".",
    "ranks": "Ranks in the process set of each.",
}
"""What columns mean that are no fields of a record."""


def markdown() -> str:
    """Return a table of columns for each kind of stream."""
    sections = []
    for kind, (about, schema) in STREAMS.items():
        rows = [(code(name), str(schema.field(name).type), meaning(name)) for name in schema.names]
        title = f"### {kind}-K.arrows"
        sections += [title, about, table(("column", "type", "meaning"), rows)]
    return "\n\n".join(sections)


def meaning(column: str) -> str:
    """Return what a column means; empty if nothing says it."""
    of_records = attributes(IterationRecord) | attributes(Layout)
    return of_records.get(column) or _OWN.get(column, "")
