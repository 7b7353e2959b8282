"""Errors are one line: the argument, the problem, and the remedy."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from clusters import gone, quiet
from levels import in_soak
from timers import PROCESS_S, eventually

import workbench as wb
from workbench import errors
from workbench.cluster.agent import Agent
from workbench.cluster.durations import parse_duration
from workbench.cluster.launchers.preflight import crowding
from workbench.cluster.threads import IdleWatch
from workbench.ranks import parse_ranks

PUBLIC = [
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and value.__module__ == errors.__name__
]


@pytest.mark.parametrize("name", PUBLIC)
def test_errors_are_importable_from_the_package(name):
    """``except wb.RanksFailed`` needs no further import, and ``from workbench import *`` has it."""
    assert getattr(wb, name) is getattr(errors, name)
    assert name in wb.__all__
    assert name in dir(wb)


def test_an_error_loads_nothing_heavy():
    """Naming an error does not import PyTorch, pandas or plotly."""
    heavy = "{'torch', 'horovod', 'pandas', 'plotly', 'numpy', 'ipyparallel'}"
    source = f"import sys, workbench as wb; wb.RanksFailed; print({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1m", 60),
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        ("500ms", 0.5),
        ("1.5m", 90),
        ("2d", 172_800),
        ("20", 20),
        ("1e2", 100),
        (20, 20),
        (0.5, 0.5),
    ],
)
def test_a_duration(text, seconds):
    """Options, magics and functions read the same."""
    assert parse_duration(text, "timeout") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "m", "1x", "1m x", "-1", "-1m", "0", "0s", "nan", "inf", True, None, [], "1m-30s"]
)
def test_no_duration(text):
    """A value that is no duration is refused with the option's name and how to write one."""
    with pytest.raises(wb.UsageError, match=r"^timeout=.*: .*\. Write .*\.$"):
        parse_duration(text, "timeout")


@pytest.mark.parametrize(
    ("options", "name"), [({"keep": "1x"}, "keep"), ({"release_after": "-3m"}, "release_after")]
)
def test_a_duration_of_a_cluster(options, name):
    """The message names the option."""
    with pytest.raises(wb.UsageError, match=f"^{name}="):
        wb.Cluster(1, **options)


@pytest.mark.parametrize("name", ["start_timeout_s", "hang_after_s"])
@pytest.mark.parametrize("value", ["5m", "", 0, -1, float("nan"), True, [], b"1"])
def test_seconds_of_a_cluster(name, value):
    """A value that is no number of seconds is refused at once, not by later calculations."""
    with pytest.raises(wb.UsageError, match=rf"^{name}=.*: must be a number above 0\. Write"):
        wb.Cluster(1, **{name: value})


def test_seconds_that_never_end():
    """A start that may take for ever, and a wait that is never explained, are choices."""
    assert wb.Cluster(1, start_timeout_s=float("inf"), hang_after_s=None).n == 1
    with pytest.raises(wb.UsageError, match=r"^start_timeout_s=None: must be"):
        wb.Cluster(1, start_timeout_s=None)


@pytest.mark.parametrize("after", [1e308, 10**30, "99999999999999999d"])
def test_release_after_ages(after):
    """The watch continues if no clock can show when it should end."""
    watch = IdleWatch(parse_duration(after, "after"), lambda: None)
    watch.start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "workbench-idle"]
    try:
        thread.join(0.3)
        assert thread.is_alive()
    finally:
        watch.stop()
        thread.join(60)


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ("1-0", "backwards. Write it as 0-1"),
        ("3-1,0", "backwards. Write it as 1-3"),
        ("0-99999999", "there is no rank 99999999"),
        ("7", "there is no rank 7"),
        ("-1", "'-1' is not a rank"),
        ("0-1-2", "'0-1-2' is not a rank"),
        ("one", "'one' is not a rank"),
        ("", "no rank named"),
        (",", "no rank named"),
        ([], "no rank named"),
        (9, "there is no rank 9"),
        ([0, 1.5], "1.5 is not a rank"),
        (["0"], "'0' is not a rank"),
        (True, "True is not a rank"),
    ],
)
def test_ranks_that_are_none(ranks, says):
    """The part that is wrong is named."""
    with pytest.raises(wb.UsageError, match=r"^ranks .*\.$") as raised:
        parse_ranks(ranks, 4)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("ranks", "chosen"),
    [("0, 2 - 3", (0, 2, 3)), ("1,1", (1,)), (2, (2,)), ({3, 0}, (0, 3)), (None, (0, 1, 2, 3))],
)
def test_ranks(ranks, chosen):
    """Ranges, numbers and blanks."""
    assert parse_ranks(ranks, 4) == chosen


def test_a_start_that_is_interrupted_says_so():
    """The state's message ends in a reason, also where the exception has no text."""
    source = """
import _thread, threading, workbench as wb
cluster = wb.Cluster(1)
threading.Timer(0.5, _thread.interrupt_main).start()
try:
    cluster.start()
except KeyboardInterrupt:
    print(cluster.message)
"""
    told = subprocess.check_output([sys.executable, "-c", source], text=True, timeout=PROCESS_S)
    assert told.strip() == "did not start: interrupted"


@pytest.mark.soak
@pytest.mark.parametrize("victims", ["all ranks", "the agent"])
def test_the_cure_works(victims):
    """The remedy in the error helps: here `restart`, and not a cluster to be started again."""
    with wb.Cluster(2) as cluster:
        if victims == "all ranks":
            pids = [info.pid for info in cluster.ranks]
        else:
            pids = [cluster.agents[0].hello.pid]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: [info.state for info in cluster.ranks] == ["dead"] * 2)
        with pytest.raises(
            wb.ClusterStopped, match=r"SIGKILL.*\. Replace .* with %cluster restart"
        ):
            quiet(cluster, "1")
        cluster.restart()
        assert quiet(cluster, "rank").values == {0: 0, 1: 1}


@pytest.mark.soak
def test_the_cure_of_a_lost_controller():
    """Without its controller a cluster can only be stopped."""
    with wb.Cluster(1) as cluster:
        me = os.getpid()
        (pid,) = [
            int(found[1])
            for line in subprocess.check_output(
                ["ps", "-ww", "-eo", "pid,ppid,args"], text=True
            ).splitlines()
            if "workbench.cluster.controller" in line
            and (found := re.match(r"\s*(\d+)\s+(\d+)", line))
            and int(found[2]) == me
        ]
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: cluster.ranks[0].state == "dead")
        with pytest.raises(wb.ClusterStopped, match=r"%cluster stop, and start another"):
            quiet(cluster, "1")


FAILS = """
import workbench as wb
from workbench.cluster import TextSink
with wb.Cluster(2) as cluster:
    cluster.run("import workbench.rank.session as s, os, resource\\n"
        "def init_ring(*given, init_ring=s.init_ring):\\n"
        "    opened, limit = len(os.listdir('/proc/self/fd')), resource.RLIMIT_NOFILE\\n"
        "    resource.setrlimit(limit, (opened + 2, resource.getrlimit(limit)[1]))\\n"
        "    return init_ring(*given)\\n"
        "s.init_ring = init_ring", ranks=1, sink=TextSink())
    try:
        cluster.restart([0])
    except wb.StartFailed as error:
        print(error, flush=True)
"""
ABORTS = """
import workbench as wb
from workbench.cluster import TextSink
with wb.Cluster(2) as cluster:
    cluster.run("import workbench.rank.session as s, os\\n"
        "def init_ring(*_): os.write(2, b'last words'); os.abort()\\n"
        "s.init_ring = init_ring", ranks=1, sink=TextSink())
    try:
        cluster.restart([0])
    except wb.StartFailed as error:
        print(error, flush=True)
"""


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (FAILS, r"hvd\.init\(\) failed: .*Too many open files"),
        in_soak(ABORTS, r"(?s)SIGABRT.*last words"),
    ],
)
def test_the_last_words_of_a_rank_are_in_the_error(source, says):
    """The log of a library that fails is shown; it is not lost in a pipe of ipykernel's."""
    # with this variable ipykernel leaves the descriptors alone; users' processes have none
    environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    done = subprocess.run(
        [sys.executable, "-c", source],
        check=False,
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        env=environment,
    )
    assert re.search(says, done.stdout), done.stderr


@pytest.mark.soak
def test_a_cluster_that_is_left_running_ends_quietly():
    """A script that ends without a stop leaves no process, and prints no traceback."""
    source = "import workbench as wb; print(*[r.pid for r in wb.Cluster(2).start().ranks])"
    done = subprocess.run(
        [sys.executable, "-c", source],
        check=True,
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
    )
    assert done.stderr == ""
    assert gone(map(int, done.stdout.split()))


def test_too_many_ranks_are_warned_of_before_they_start():
    """Cores and memory that cannot do are named, with how many ranks to start instead."""
    agent = Agent(None, 4096)
    try:
        agent.wait_until_greeted(time.monotonic() + 60)
        cores, memory = crowding(agent, 4096)
        assert re.search(r"4096 ranks share \d+ cores.* Start at most \d+", cores)
        assert re.search(r"need at least 5\d\d\.\d GiB .* Start at most \d+\.$", memory)
        assert list(crowding(agent, 1)) == []
    finally:
        agent.close()
