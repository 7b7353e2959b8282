"""Arguments as notebooks have them: numbers of NumPy, modules, names that the cluster sets."""

import json
import math
import re

import numpy as np
import pytest
import torch
from clusters import quiet
from IPython.core.interactiveshell import InteractiveShell

import workbench as wb
from workbench.cluster.outcomes import failure
from workbench.errors import RankError, UsageError
from workbench.hosts import parse_hosts
from workbench.magics import WorkbenchMagics
from workbench.ranks import parse_ranks

GROUP = "ExceptionGroup", "loads (2 sub-exceptions)"


def test_numbers_of_numpy_are_numbers():
    """The options keep them as numbers of Python, which a kept cluster's state file needs."""
    options = wb.Cluster(
        n=np.int64(2),
        start_timeout_s=np.int64(60),
        hang_after_s=np.float32(2),
        release_after=np.int32(90),
        keep=np.int64(60),
    ).options
    assert json.loads(json.dumps(options.to_plain())) == options.to_plain()
    assert (options.n, options.keep_s, options.release_after) == (2, 60, 90)
    (host,) = parse_hosts([wb.Cluster(hosts="vm1").options.hosts[0].__class__("vm1", np.int64(3))])
    assert type(host.slots) is int
    assert parse_ranks(np.arange(2), 2) == (0, 1)


def test_arrays_without_dimensions(cluster):
    """One is a number, and no list, though its type can be iterated."""
    assert parse_ranks(np.array(1), 2) == (1,)
    assert parse_ranks(torch.tensor(1), 2) == (1,)
    for call, says in (
        (lambda: parse_ranks(np.array(1.5), 2), r"ranks array\(1.5\).* is not a rank"),
        (lambda: parse_hosts(np.array(1)), "hosts: a ndarray names no hosts"),
        (lambda: cluster.pull(np.array("x")), r"pull array\(.*: not a name"),
        (lambda: wb.Cluster(hang_after_s=np.arange(2)), "hang_after_s=.*: must be a number"),
    ):
        with pytest.raises(UsageError, match=says):
            call()


@pytest.mark.parametrize("n", [np.int64(0), np.float64(2), np.bool_(True), True, "2", 2.0])
def test_no_number_of_ranks(n):
    """It is shown as it was given."""
    with pytest.raises(UsageError) as caught:
        wb.Cluster(n=n)
    assert str(caught.value).startswith(f"n={n!r}: must be a positive integer.")


@pytest.mark.parametrize("n", [1025, 10**30])
def test_more_ranks_than_a_machine_runs(cluster, n):
    """A number with a digit too many is refused before any process is started or ended."""
    with pytest.raises(UsageError, match=f"^n={n}: one machine runs at most 1024 ranks"):
        wb.Cluster(n=n)
    pids = [info.pid for info in cluster.ranks]
    with pytest.raises(UsageError, match=f"^n={n}: one machine runs at most 1024 ranks"):
        cluster.resize(n)
    assert cluster.state == "ready"
    assert [info.pid for info in cluster.ranks] == pids


@pytest.mark.parametrize("name", ["launcher", "backend"])
def test_a_list_is_no_name(name):
    """It is refused as another name is."""
    with pytest.raises(UsageError, match=rf"^{name}=\[\]: not a {name}\."):
        wb.Cluster(n=1, **{name: []})


@pytest.mark.parametrize("timeout", [None, "soon", math.nan, 0, -1, [3]])
def test_a_time_limit_that_is_none(cluster, timeout):
    """Push, pull and calibration refuse it as cells do, and accept a time such as 5m."""
    given = re.escape(f"timeout={timeout!r}: ")
    for call in (
        lambda: cluster.push({"x": 1}, timeout=timeout),
        lambda: cluster.pull("x", timeout=timeout),
        lambda: cluster.calibrate(timeout),
    ):
        with pytest.raises(UsageError, match=f"^{given}"):
            call()
    cluster.push({"x": 1}, timeout="5m")
    assert cluster.pull("x", timeout="30s") == {0: {"x": 1}, 1: {"x": 1}}


@pytest.mark.parametrize("seconds", [b"x", None, "soon", math.nan, 0])
def test_a_time_of_samples_that_is_none(cluster, seconds):
    """It is refused before a rank is asked, and the ranks can be reached afterwards."""
    with pytest.raises(UsageError, match=f"^seconds={re.escape(repr(seconds))}: "):
        cluster.sample_lines(seconds)
    cluster.push({"x": 1}, timeout=5)


def test_a_cell_that_is_no_text(cluster):
    """It is refused here, and no frames of this package are shown."""
    with pytest.raises(
        UsageError, match=r"^run: the cell is of type int\. Give its source as text"
    ):
        cluster.run(1)
    with pytest.raises(UsageError, match=r"^run: the cell is of type NoneType\."):
        cluster.run_in_background(None)


@pytest.mark.parametrize("names", ["x", ["x"], None, 3])
def test_a_push_without_values(cluster, names):
    """It is refused with an example."""
    kind = type(names).__name__
    with pytest.raises(
        UsageError, match=rf"^push: values are of type {kind}, and have no names\. "
    ):
        cluster.push(names)


def test_a_magic_without_arguments_is_named_alone():
    """No space is between its name and the colon."""
    with pytest.raises(UsageError, match=r"^%push: the following arguments are required: names"):
        WorkbenchMagics(InteractiveShell()).push("")


def test_names_of_the_cluster_and_modules_are_not_pushed(cluster):
    """The error says why, and what to do instead; the ranks keep what they have."""
    for name in ("hvd", "device", "world_size"):
        with pytest.raises(UsageError, match=f"^push {name}: the cluster sets '{name}'.* another"):
            cluster.push({name: 1})
    with pytest.raises(UsageError, match=r"^push m: a module \(math\).*Import it in a cell"):
        cluster.push({"fine": 1, "m": math})
    found = quiet(cluster, "hvd.size(), world_size, str(device), 'fine' in globals()").values
    assert set(found.values()) == {(2, 2, "cpu", False)}


def test_equal_groups_of_different_errors_are_shown_for_each_rank(cluster):
    """Their own text is the same; that of their members is not."""
    source = "raise ExceptionGroup('loads', [ValueError({}), KeyError('x')])"
    with pytest.raises(wb.RanksFailed) as caught:
        quiet(cluster, source.format("rank"))
    text = str(caught.value)
    assert "[rank 0] ExceptionGroup: loads" in text
    assert "[rank 1] ExceptionGroup: loads" in text
    with pytest.raises(wb.RanksFailed) as caught:
        quiet(cluster, source.format("7"))
    assert "[ranks 0-1] ExceptionGroup: loads" in str(caught.value)


def test_colours_do_not_tell_errors_apart():
    """Nor does what precedes the message, such as the frames of a rank."""
    plain = RankError(*GROUP, "frames 0\nExceptionGroup: loads (2 sub-exceptions)\n\n  1 of 2: x")
    coloured = RankError(
        *GROUP, "frames 1\n\x1b[31mExceptionGroup\x1b[39m: loads (2 sub-exceptions)\n\n  1 of 2: x"
    )
    assert str(failure({0: plain, 1: coloured}, released=False)).startswith("[ranks 0-1]")


@pytest.mark.parametrize("name", [0, 1.5, None, True, object()])
def test_a_name_that_is_none(cluster, name):
    """Pull, the brackets, and attach refuse what is no text."""
    with pytest.raises(UsageError, match=r"^pull .*: not a name\. Give the name"):
        cluster.pull(name)
    with pytest.raises(UsageError, match=r"^pull .*: not a valid Python name\. Give the name"):
        cluster.pull([name])
    for one in (name, [], {}):
        with pytest.raises(UsageError, match=r"^push .*: not a valid Python name\. Give the name"):
            cluster[one] = 1
    if name is not None:
        with pytest.raises(UsageError, match=r"^attach .*: not a name\. Give that"):
            wb.Cluster.attach(name)


def test_no_sink(cluster):
    """It is refused before the cell runs."""
    with pytest.raises(UsageError, match=r"^sink=0: not a sink\. Give"):
        cluster.run("ran = True", sink=0)
    assert set(quiet(cluster, "'ran' in globals()").values.values()) == {False}
