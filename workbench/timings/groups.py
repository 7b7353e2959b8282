"""The process groups and process sets in which collectives ran, by the users' names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from workbench.ranks import phrase
from workbench.timings.collective_records import CollectiveRecord

if TYPE_CHECKING:
    import pandas as pd


def group_names(records: Iterable[CollectiveRecord], *, unique: bool = False) -> dict[int, str]:
    """Return the name of each group of fewer than all ranks, by its number.

    That is the name which the user gave, such as ``"tp"``; without one its ranks, or its number
    if not all of them have reported. With `unique`, the ranks follow a name of several groups.
    """
    names: dict[int, str] = {}
    sizes: dict[int, int] = {}
    members: dict[int, set[int]] = {}
    seen: set[tuple[int, int]] = set()
    for one in records:
        if (one.rank, id(one.layout)) in seen:
            continue
        seen.add((one.rank, id(one.layout)))
        columns = one.layout.process_sets, one.layout.groups, one.layout.ranks
        for number, name, size in set(zip(*columns, strict=True)):
            if number:
                names[number], sizes[number] = name, size
                members.setdefault(number, set()).add(one.rank)
    given = list(names.values())
    for number, name in names.items():
        complete = len(members[number]) == sizes[number]
        ranks = phrase(members[number]) if complete else f"process set {number}"
        if not name:
            names[number] = ranks
        elif unique and given.count(name) > 1:
            names[number] = f"{name} ({ranks})"
    return names


def summarize_groups(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per group of ranks; `table` is that of `frame.collectives`.

    Columns: group and process_set (see `frame.collectives`), ranks (those that reported),
    kinds; per iteration and rank the number of collectives, their bytes, and duration_us, the
    sum of their times from submitted to finished, which may overlap.
    """
    import pandas as pd

    inside = table[table["iteration"] >= 0]
    rows = []
    for (group, number), own in inside.groupby(["group", "process_set"]):
        turns = len(own[["iteration", "rank"]].drop_duplicates())
        rows.append(
            {
                "group": group,
                "process_set": number,
                "ranks": tuple(sorted(set(own["rank"].tolist()))),
                "kinds": tuple(sorted(set(own["kind"]))),
                "collectives": len(own) / turns,
                "bytes": own["bytes"].sum() / turns,
                "duration_us": own["duration_us"].sum() / turns,
            }
        )
    names = ["group", "process_set", "ranks", "kinds", "collectives", "bytes", "duration_us"]
    return pd.DataFrame(rows, columns=names)
