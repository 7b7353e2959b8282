"""The process groups and process sets that collectives used, by the users' names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from workbench.ranks import phrase
from workbench.timings.collective_records import CollectiveRecord

if TYPE_CHECKING:
    import pandas as pd


def group_names(records: Iterable[CollectiveRecord], *, unique: bool = False) -> dict[int, str]:
    """Return the names of the groups that do not contain all ranks, by the number of the group.

    A group has the name that the user gave it, such as ``"tp"``. The name of
    any other group consists of its ranks, or of its number if not all of its ranks have reported.
    With `unique`, a name that several groups have is followed by the ranks of the group.
    """
    names: dict[int, str] = {}
    sizes: dict[int, int] = {}
    members: dict[int, set[int]] = {}
    seen_layouts: set[tuple[int, int]] = set()
    for record in records:
        layout = record.layout
        if (record.rank, id(layout)) in seen_layouts:
            continue
        seen_layouts.add((record.rank, id(layout)))
        columns = layout.process_sets, layout.groups, layout.ranks
        for number, name, size in set(zip(*columns, strict=True)):
            if number:
                names[number] = name
                sizes[number] = size
                members.setdefault(number, set()).add(record.rank)
    user_names = list(names.values())
    for number, name in names.items():
        is_complete = len(members[number]) == sizes[number]
        ranks = phrase(members[number]) if is_complete else f"process set {number}"
        if not name:
            names[number] = ranks
        elif unique and user_names.count(name) > 1:
            names[number] = f"{name} ({ranks})"
    return names


def summarize_groups(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per group of ranks; `table` is a result of `frame.collectives`.

    Columns: group and process_set (see `frame.collectives`); ranks, the ranks that have reported;
    kinds; and, per iteration and rank, the number of collectives, their bytes, and duration_us.
    duration_us is the sum of their times from submitted to finished, which may overlap.
    """
    import pandas as pd

    inside = table[table["iteration"] >= 0]
    rows = []
    for (group, number), part in inside.groupby(["group", "process_set"]):
        rank_iterations = len(part[["iteration", "rank"]].drop_duplicates())
        rows.append(
            {
                "group": group,
                "process_set": number,
                "ranks": tuple(sorted(set(part["rank"].tolist()))),
                "kinds": tuple(sorted(set(part["kind"]))),
                "collectives": len(part) / rank_iterations,
                "bytes": part["bytes"].sum() / rank_iterations,
                "duration_us": part["duration_us"].sum() / rank_iterations,
            }
        )
    names = ["group", "process_set", "ranks", "kinds", "collectives", "bytes", "duration_us"]
    return pd.DataFrame(rows, columns=names)
