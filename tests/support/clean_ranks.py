"""Ranks that tests share, without what earlier tests have left in them."""

from pathlib import Path
from weakref import WeakKeyDictionary

from clusters import quiet

from workbench.errors import WorkbenchError

SOURCE = Path(__file__).with_name("rank_pollution.py").read_text()
NAME = "_rank_pollution"
"""The module of a rank that has the code above."""

# neither sets a variable
BEGIN = f"""
__import__("sys").modules[{NAME!r}] = __import__("types").ModuleType({NAME!r})
exec(compile({SOURCE!r}, {NAME!r}, "exec"), vars(__import__({NAME!r})))
"""
CLEAR = f"__import__({NAME!r}).clear(), __import__({NAME!r}).differences()"

_remembered = WeakKeyDictionary()
"""The processes of each cluster whose state was remembered."""


def _processes(cluster):
    return [info.pid for info in cluster.ranks]


def remember(cluster):
    """Remember the state of the ranks, unless these processes have done so."""
    if not is_remembered(cluster):
        quiet(cluster, BEGIN)
        _remembered[cluster] = _processes(cluster)


def is_remembered(cluster):
    """Return whether the ranks are the processes whose state was remembered."""
    return _remembered.get(cluster) == _processes(cluster)


def clear(cluster):
    """Delete the variables of the ranks; return how else they differ from new ones, as lines."""
    if not is_remembered(cluster):
        return ["the ranks are not those that the tests have begun with"]
    try:
        values = quiet(cluster, CLEAR).values
    except WorkbenchError as error:
        return [f"the ranks cannot be cleared: {error}"]
    return [f"rank {rank}: {line}" for rank, (_, lines) in values.items() for line in lines]
