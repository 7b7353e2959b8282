"""Ranks that use all the address space they may: errors name it, and no variables are lost."""

import re

import pytest
from clusters import quiet, training
from levels import in_soak
from timers import FAR_S, eventually

import workbench as wb

LIMITED = """
import resource
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
data = []
if rank == 1:
    resource.setrlimit(resource.RLIMIT_AS, (used + ({extra}), resource.RLIM_INFINITY))
for i in range(100):
    while rank == 1:
        data.append(torch.ones({size}))
        if {size} > 1 << 20: break
    train(1)
"""
FILLED = """
import resource, time
def limit(extra):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra, resource.RLIM_INFINITY))
sizes = [*(1 << power for power in range(22, 9, -1)), *range(512, 0, -16)]
def fill(sizes):
    limit(1 << 20)
    held = None
    for size in sizes:
        try:
            while True: held = held, bytes(size)
        except MemoryError: pass
    return held
"""
USES_ALL = """
def use_all():  # a function, because IPython needs memory between two statements of a cell
    held = fill(sizes)
    time.sleep(2)
    while held is not None: held = held[0]
train(2)  # its records are on their way
if rank == 1: use_all()
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
train(2)
"""
UNLIMITED = "resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)"


@pytest.mark.parametrize(
    ("extra", "size"),
    [
        in_soak(1 << 20, 1 << 10),
        in_soak(1 << 20, 1 << 16),
        (1 << 20, 1 << 22),
        (40 << 20, 1 << 10),
        in_soak(40 << 20, 1 << 16),
        in_soak(40 << 20, 1 << 22),
    ],
)
def test_a_rank_without_memory_keeps_its_variables(clean_cluster, size, extra):
    """The ring is rebuilt, and the next cell can free what the rank has."""
    cluster = clean_cluster
    quiet(cluster, "kept = 41 + rank\n" + training(2))
    for _ in range(2):
        with pytest.raises(wb.RanksFailed, match=r"\[rank 1\].*[Mm]emory"):
            quiet(cluster, LIMITED.format(size=size, extra=extra))
        assert cluster.state == "ready", cluster.message
        assert quiet(cluster, "data = []; kept").values == {0: 41, 1: 42}
        quiet(cluster, "import gc; gc.collect(); train(2)")
    quiet(cluster, UNLIMITED)
    assert cluster["kept"] == [41, 42]


def test_a_ring_for_which_there_is_no_memory(new_ranks):
    """The error names the limit, and a new process takes the rank's place."""
    cluster = new_ranks  # earlier tests have left free memory to those that they have used
    quiet(cluster, "kept = 41 + rank\n" + training(2))
    with pytest.raises(wb.WorkbenchError):
        quiet(cluster, LIMITED.format(size=1 << 22, extra="-(300 << 20)"))
    assert cluster.state == "failed"
    assert re.search(r"rank 1 .*GB that RLIMIT_AS \(ulimit -v\) allows", cluster.message)
    cluster.restart(1)
    assert cluster.pull("kept", 0) == {0: {"kept": 41}}
    assert quiet(cluster, "hvd.size()").values == {0: 2, 1: 2}


def test_a_rank_uses_all_memory_for_some_time(clean_cluster):
    """Threads that serve its connections go on when there is memory again, and lose no record."""
    cluster = clean_cluster
    before = len(cluster.timings)
    quiet(cluster, "kept = 41 + rank\n" + training(2) + FILLED)
    for _ in range(2):
        assert quiet(cluster, USES_ALL + "kept").values == {0: 41, 1: 42}
    assert eventually(lambda: len(cluster.timings) == before + 2 * (2 + 4 + 4))


def test_a_rank_without_memory_waits_for_one_that_failed(clean_cluster):
    """It can be freed: the thread that does so has memory that cells cannot use."""
    cluster = clean_cluster
    quiet(cluster, "kept = 41 + rank\n" + training(2) + FILLED)
    with pytest.raises(wb.RanksFailed, match=r"\[rank 0\] ZeroDivisionError"):
        quiet(
            cluster,
            """
hvd.allreduce(torch.ones(1), name="both")
held = fill(sizes[:4]) if rank == 1 else 1 / 0
hvd.allreduce(torch.ones(1), name="alone")
""",
        )
    assert quiet(cluster, f"held = None; {UNLIMITED}; kept").values == {0: 41, 1: 42}


@pytest.mark.soak
@pytest.mark.slow
def test_no_memory_for_the_fusion_buffer():
    """It ends Horovod's thread: the rank reports it, and the others do not wait for the rank."""
    limited = "kept = 41 + rank\nif rank == 1: limit(8 << 20)\n" + training(2)
    with wb.Cluster(n=2) as cluster:
        quiet(cluster, FILLED + "import torch._dynamo")
        for record, begin in ((True, ""), (False, ""), (False, "hvd.shutdown(); hvd.init()")):
            cluster.recording = record
            quiet(cluster, begin)
            with pytest.raises(wb.RanksFailed, match=r"\[rank 1\] ValueError: Handle") as caught:
                quiet(cluster, limited, timeout=FAR_S)
            assert list(caught.value.errors) == [1]
            assert "The ring is rebuilt" in str(caught.value)
            assert quiet(cluster, f"{UNLIMITED}; kept").values == {0: 41, 1: 42}
        quiet(cluster, training(2))


@pytest.mark.soak
def test_horovods_thread_ends_while_no_rank_waits():
    """The ring is rebuilt before the next cell."""
    unused = """
import torch
kept = 41 + rank
def is_over(handle):
    try: return hvd.poll(handle)
    except ValueError: return True
if rank == 1: limit(8 << 20)
handles = [hvd.allreduce_async(torch.ones(4), name=str(i)) for i in range(8)]
while not all(map(is_over, handles)): time.sleep(0.05)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
"""
    with wb.Cluster(n=2) as cluster:
        quiet(cluster, FILLED)
        quiet(cluster, unused, timeout=FAR_S)
        source = "float(hvd.allreduce(torch.ones(1), op=hvd.Sum)), kept"
        assert quiet(cluster, source, timeout=FAR_S).values == {0: (2.0, 41), 1: (2.0, 42)}
