"""Values to the ranks and back: as they are, at once or with a reason, and never half."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import psutil
import pytest
import torch
from clusters import children, quiet, waiting_for
from levels import in_soak
from timers import FAR_S, PROCESS_S, eventually, later, when

from workbench.errors import CellInterrupted, CellTimeout, ClusterStopped, RanksFailed, UsageError
from workbench.wire.values import Payload

CONTROLLER = "workbench.cluster.controller"
MODULE = """
import sys, types
module = types.ModuleType("ranks_only")
exec("class Thing:\\n    pass", module.__dict__)
module.Thing.__module__ = "ranks_only"
sys.modules["ranks_only"] = module
thing = module.Thing()
"""
SLOW = """
import os, pathlib, time
class Slow:
    def __reduce__(self):
        pathlib.Path({!r}).touch()
        time.sleep(600)
slow = Slow()
"""


def interrupted_after(seconds):
    return later(seconds, lambda: os.kill(os.getpid(), signal.SIGINT))


def while_pickling(mark, action):
    """Do something from another thread once a rank pickles what `SLOW` has made."""
    return later(0, lambda: eventually(mark.exists) and action())


def test_arrays_arrive_writable_on_both_ways(cluster):
    """Large and small ones, in either order, and where the original is read-only."""
    frozen = np.arange(5.0)
    frozen.flags.writeable = False
    large = np.arange(300_000.0).reshape(500, 600)
    frozen_large = large.copy()
    frozen_large.flags.writeable = False
    arrays = {
        "small": np.arange(3),
        "large": large,
        "fortran": np.asfortranarray(large),
        "part": large[::2, 1:],
        "frozen": frozen,
        "frozen_large": frozen_large,
        "empty": np.zeros((0, 3)),
        "words": np.array(["a", None], dtype=object),
    }
    cluster.push({"arrays": arrays})
    source = "all(a.flags.writeable for a in arrays.values())"
    assert quiet(cluster, source).values == {0: True, 1: True}
    for back in cluster["arrays"]:
        assert list(back) == list(arrays)
        for name, array in back.items():
            assert array.flags.writeable, name
            assert array.dtype == arrays[name].dtype
            np.testing.assert_array_equal(array, arrays[name])


def test_tensors_and_plain_values(cluster):
    """PyTorch's tensors, of types that NumPy does not have, and values that share a part."""
    tensor = torch.arange(200_000, dtype=torch.bfloat16)
    shared = [1]
    cluster.push({"t": tensor, "x": [shared, shared], "y": None, "b": b"x" * 3_000_000})
    quiet(cluster, "x[0].append(rank)")
    for rank, row in cluster.pull(["t", "x", "y", "b"]).items():
        assert torch.equal(row["t"], tensor)
        assert row["x"] == [[1, rank], [1, rank]]
        assert row["y"] is None
        assert row["b"] == b"x" * 3_000_000


def test_to_some_ranks(cluster):
    """Only the ranks that are named get a name, or are asked for one."""
    cluster.push({"there": 1}, ranks="1")
    assert cluster.pull(["there"], ranks="1") == {1: {"there": 1}}
    with pytest.raises(UsageError, match=r"pull there: no 'there' on rank 0\."):
        cluster["there"]


def test_classes_of_the_notebook_are_sent_along(cluster):
    """A local class keeps its identity on the way back."""

    class Local:
        def __init__(self, size):
            self.size = size

    Local.__module__ = "__main__"
    cluster.push({"Local": Local, "local": Local(3)})
    assert quiet(cluster, "(local.size, isinstance(local, Local))").values[1] == (3, True)
    assert all(isinstance(value, Local) for value in cluster["local"])


@pytest.mark.soak
def test_functions_of_a_script_use_the_ranks_names(tmp_path):
    """Run as a script, so that functions are of ``__main__`` as a notebook's are."""
    script = tmp_path / "script.py"
    script.write_text(
        "import workbench as wb\n"
        "from workbench.cluster import TextSink\n"
        "base = 100\n"
        "def helper(): return base\n"
        "def ask(): return helper() + rank\n"
        "class Point:\n"
        "    def twice(self): return 2 * rank\n"
        "with wb.Cluster(n=2) as c:\n"
        "    c.push({'ask': ask, 'point': Point()})\n"
        "    print(c.run('(ask(), point.twice())', sink=TextSink()).values)\n"
        "    c.run('class Found:\\n    pass\\nfound = Found()', sink=TextSink())\n"
        "    print([type(f).__name__ for f in c['found']])\n"
        "    print(all(type(p) is Point for p in c['point']))\n"
    )
    done = subprocess.run(
        [os.sys.executable, script], capture_output=True, text=True, check=False, timeout=PROCESS_S
    )
    assert done.stdout.splitlines() == [
        "{0: (100, 0), 1: (101, 2)}",
        "['Found', 'Found']",
        "True",
    ], done.stderr


def test_a_class_of_the_ranks_arrives_with_its_value(cluster):
    """A class that a cell has defined is known here as well."""
    quiet(cluster, "class Made:\n    def size(self): return 7\nmade = Made()")
    assert [value.size() for value in cluster["made"]] == [7, 7]


def test_a_pulled_function_uses_its_own_ranks_variables(cluster):
    """Not those of the first rank, nor this notebook's, to which it adds none."""
    quiet(cluster, "own_scale = 10 * (rank + 1)\ndef scaled(x): return own_scale * x")
    assert [scaled(2) for scaled in cluster["scaled"]] == [20, 40]
    assert "own_scale" not in vars(sys.modules["__main__"])


def test_a_class_that_is_unknown_here_is_named_at_once(cluster):
    """It once hung for minutes."""
    quiet(cluster, MODULE)
    with pytest.raises(UsageError, match=r"cannot read.*ranks_only.*'thing' is of type") as caught:
        cluster["thing"]
    assert "\n" not in str(caught.value)
    assert cluster.state == "ready"


def test_missing_names_are_listed_with_their_ranks(cluster):
    """One line for all of them."""
    quiet(cluster, "if rank == 1: only_there = 1")
    with pytest.raises(UsageError, match=r"^pull only_there nowhere: ") as caught:
        cluster.pull(["only_there", "nowhere"])
    text = str(caught.value)
    assert "no 'only_there', 'nowhere' on rank 0" in text
    assert "no 'nowhere' on rank 1" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda c: c[0], "pull 0: not a valid Python name"),
        (lambda c: c.pull(["kept", "a b"]), "pull 'a b': not a valid"),
        (lambda c: c.push({1: 2}), "push 1: not a valid"),
        (lambda c: c.push({"class": 2}), "push 'class': not a valid"),
        (lambda c: c.push({"rank": 2}), "push rank: each rank has its own .*another name"),
    ],
)
def test_names_that_no_variable_has_are_refused(cluster, call, says):
    """The error repeats the argument, and nothing is sent."""
    with pytest.raises(UsageError, match=says):
        call(cluster)
    assert quiet(cluster, "rank").values == {0: 0, 1: 1}


def test_what_cannot_be_pickled_is_named(cluster):
    """On either side: the name, the type, why, and where."""
    quiet(cluster, "import threading\nfine, lock = 1, threading.Lock()")
    with pytest.raises(UsageError, match=r"'lock' on ranks 0-1 is of type _thread\.lock.*pickle"):
        cluster.pull(["fine", "lock"])
    with pytest.raises(UsageError, match=r"'guard' is of type _thread\.lock.*cannot be pickled"):
        cluster.push({"fine": 1, "guard": threading.Lock()})


def test_a_push_sets_all_names_or_none(cluster):
    """One rank cannot read it: no rank has any of the names."""

    class Picky:
        def __reduce__(self):
            return eval, ("1 / (1 - __import__('workbench.rank.session').rank.session._rank())",)

    quiet(cluster, "import workbench.rank.session as s; s._rank = lambda: rank")
    with pytest.raises(UsageError, match=r"rank 1 cannot read it \(ZeroDivisionError"):
        cluster.push({"before": 1, "picky": Picky()})
    with pytest.raises(UsageError, match=r"no 'before', 'picky' on ranks 0-1"):
        cluster.pull(["before", "picky"])


def test_a_push_that_a_rank_has_no_memory_for(cluster):
    """It fails without delay, sets no name, and shows nothing in the next cell's output."""
    quiet(cluster, "import resource\nx = 1")
    limit = "resource.setrlimit(resource.RLIMIT_AS, ({}, resource.RLIM_INFINITY))"
    used = "int(open('/proc/self/statm').read().split()[0]) * 4096"
    quiet(cluster, limit.format(f"{used} + (30 << 20)"), ranks="1")
    with pytest.raises(UsageError, match=r"^push x: rank 1 cannot read it \(MemoryError: ") as seen:
        cluster.push({"x": bytes(100_000_000)}, timeout=FAR_S)
    assert str(seen.value).endswith("Free memory there, or push smaller pieces.")
    quiet(cluster, limit.format("resource.RLIM_INFINITY"), ranks="1")
    assert cluster["x"] == [1, 1]
    cluster.push({"x": bytes(100_000_000)})
    assert quiet(cluster, "len(x)").values == {0: 100_000_000, 1: 100_000_000}


def test_a_pull_that_this_kernel_has_no_memory_for(cluster, monkeypatch):
    """It names the size, and what to do."""
    quiet(cluster, "x = bytes(2_000_000)")

    def empty(_):
        raise MemoryError

    monkeypatch.setattr(Payload, "empty", empty)
    with pytest.raises(UsageError, match=r"^pull x: 4 MB do not fit into this kernel's memory\."):
        cluster.pull("x")
    monkeypatch.undo()
    assert [len(row["x"]) for row in cluster.pull("x").values()] == [2_000_000] * 2


@pytest.mark.soak
def test_a_large_push_shows_how_far_it_is(cluster, capsys):
    """A few lines at most; an interrupt on the way leaves no name behind."""
    value = np.ones(60_000_000)

    def push():
        while True:  # a fast machine is done before the interrupt
            cluster.push({"value": value})
            quiet(cluster, "del value")

    with interrupted_after(1.3), pytest.raises(KeyboardInterrupt):
        push()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 3
    assert all(line.startswith("push value: ") and line.endswith(" of 960 MB") for line in lines)
    with pytest.raises(UsageError, match="no 'value' on ranks 0-1"):
        cluster["value"]
    cluster.push({"value": 1})
    assert cluster["value"] == [1, 1]


def test_pickling_that_takes_long_is_interrupted(cluster, tmp_path):
    """The rank's own code is interrupted; the cluster continues."""
    mark = tmp_path / "mark"
    quiet(cluster, SLOW.format(str(mark)))

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)

    with while_pickling(mark, interrupt), pytest.raises(KeyboardInterrupt):
        cluster["slow"]
    assert cluster.state == "ready"
    assert quiet(cluster, "rank").values == {0: 0, 1: 1}


def test_a_pull_waits_for_the_cells_before_and_says_so(cluster, capsys, tmp_path):
    """It gets what the cell has set; while it waits it can be interrupted."""
    mark, said = tmp_path / "mark", []

    def is_said():
        said.append(capsys.readouterr().out)
        return "pull late: waiting for the cells" in "".join(said)

    future = cluster.run_in_background(f"{waiting_for(mark)}late = rank")
    with interrupted_after(0.5), pytest.raises(CellInterrupted, match="pull late: interrupted"):
        cluster["late"]
    waiter = when(is_said, mark.touch)
    assert cluster["late"] == [0, 1]
    waiter.join()
    future.result(timeout=FAR_S)
    assert mark.exists()


def test_a_time_limit(cluster):
    """A rank whose process is stopped is named, and used again when it goes on."""
    quiet(cluster, "there = 1")
    pid = cluster.ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(CellTimeout, match=r"no answer of rank 1 for 5 s"):
            cluster.pull(["there"], timeout=5.0)
        assert cluster.state == "failed"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert eventually(lambda: cluster.state == "ready")
    assert cluster["there"] == [1, 1]


@pytest.mark.parametrize("what", ["pull", in_soak("push")])
def test_a_rank_killed_meanwhile_is_lost_at_once(cluster, what, tmp_path):
    """It is named as in a cell; the next error says what to do, and a restart works."""
    mark = tmp_path / "mark"
    quiet(cluster, SLOW.format(str(mark)))
    value = np.ones(100_000_000)
    victim = cluster.ranks[1].pid

    def kill():
        os.kill(victim, signal.SIGKILL)

    action = while_pickling(mark, kill) if what == "pull" else later(0.2, kill)
    with action, pytest.raises(RanksFailed, match=r"RankLost.*SIGKILL") as caught:
        cluster["slow"] if what == "pull" else cluster.push({"value": value})
    assert set(caught.value.errors) == {1}
    with pytest.raises(ClusterStopped, match=r"SIGKILL.*restart --ranks 1"):
        cluster["slow"]
    cluster.restart()
    cluster.push({"x": 1})
    assert cluster["x"] == [1, 1]


def test_a_controller_killed_meanwhile(cluster, tmp_path):
    """All ranks are lost, with the reason."""
    mark = tmp_path / "mark"
    quiet(cluster, SLOW.format(str(mark)))
    controller = max(
        children(CONTROLLER), key=psutil.Process.create_time
    ).pid  # another cluster runs too
    with (
        while_pickling(mark, lambda: os.kill(controller, signal.SIGKILL)),
        pytest.raises(RanksFailed, match="controller was killed by SIGKILL"),
    ):
        cluster["slow"]
