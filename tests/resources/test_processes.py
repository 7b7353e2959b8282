"""Which processes take this VM, and whose kernels and ranks they are."""

from __future__ import annotations

import json
import os

import pytest
from fake_nvml import DRIVER_NOT_LOADED, GIB, FakeNvml, Process, h100, mig_a100
from hgx_host import KERNEL as KERNEL_PID
from hgx_host import RANKS, build_hgx
from jupyter_client import MultiKernelManager
from timers import FAR_S, eventually

from workbench.resources import Unknown
from workbench.resources.counters import Sampler
from workbench.resources.process_registry import register_rank

KERNEL = "0f6b2f7e-7f3e-4f0e-9c55-0d3f1d3a1e11"
FILE = f"/home/a/.local/share/jupyter/runtime/kernel-{KERNEL}.json"
IPYTHON = ("python", "-m", "ipykernel_launcher", "-f", FILE)
AGENT = ("python", "-m", "workbench.agent.program", "4000")
HIDDEN = Unknown("not visible here (of another container, or just ended)")


@pytest.fixture
def nvml():
    return FakeNvml(h100(), h100(uuid="GPU-2"))


@pytest.fixture
def live(machine, nvml, tmp_path):
    options = {"ranks": tmp_path / "ranks", "time_limit_s": FAR_S}
    with Sampler(**machine.roots, nvml=nvml, **options) as sampler:
        yield sampler


def processes(live):
    return {one.pid: one for one in live.sample().processes}


@pytest.mark.parametrize(
    "arguments",
    [
        IPYTHON,
        ("/usr/bin/python3", "-Xfrozen_modules=off", "-m", "ipykernel", f"--f={FILE}"),
        ("/usr/lib/R/bin/exec/R", "--slave", "-e", "IRkernel::main()", "--args", FILE),
        ("julia", "-i", "--color=yes", "kernel.jl", FILE),
    ],
)
def test_a_kernel(machine, live, arguments):
    """Kernels of any language are known by their connection file."""
    machine.add_process(4000, *arguments, pages=1000)
    machine.add_process(4001, "bash")
    (kernel,) = processes(live).values()
    assert (kernel.pid, kernel.kind, kernel.kernel_id) == (4000, "kernel", KERNEL)
    assert (kernel.notebook, kernel.cluster, kernel.rank) == (None, None, None)
    assert kernel.memory_bytes == 1000 * os.sysconf("SC_PAGE_SIZE")
    assert kernel.gpus == ()


def test_a_kernel_of_no_server(machine, live):
    """Kernels that a script runs notebooks with have no id that a server would know."""
    machine.add_process(4000, "python", "-m", "ipykernel_launcher", "-f", "/tmp/tmpq3k.json")
    (kernel,) = processes(live).values()
    assert (kernel.kind, kernel.kernel_id) == ("kernel", None)
    machine.add_process(
        4001, "python", "-m", "ipykernel_launcher", "-f", "/tmp/tmpz9a.json", parent=4000
    )
    assert set(processes(live)) == {4000, 4001}  # a notebook may run another


def test_a_console_is_no_kernel(machine, live):
    """It names the file of a kernel that is another process."""
    machine.add_process(4000, "python", "jupyter-console", "--existing", FILE)
    machine.add_process(4001, "python", "jupyter-qtconsole", f"--existing={FILE}")
    assert processes(live) == {}


def test_what_a_kernel_has_forked_is_no_kernel(machine, live):
    """A fork has its parent's arguments: it is not listed as a second kernel."""
    machine.add_process(4000, *IPYTHON)
    machine.add_process(4005, *IPYTHON, parent=4000)
    assert set(processes(live)) == {4000}


def test_what_has_started_a_kernel_is_no_kernel(machine, live):
    """A script that starts the kernel has its file among its arguments too."""
    machine.add_process(4000, "bash", "/opt/kernel.sh", FILE)
    machine.add_process(4005, *IPYTHON, parent=4000)
    assert set(processes(live)) == {4005}


def test_cpu_of_a_process(machine, live):
    """CPU needs two samples; 100 is one core."""
    machine.add_process(4000, *IPYTHON)
    assert processes(live)[4000].cpu_percent == Unknown("needs two samples")
    assert processes(live)[4000].cpu_percent == 0.0
    machine.add_process(4000, *IPYTHON, ticks=500)
    assert processes(live)[4000].cpu_percent > 0


def test_a_process_that_ends(machine, live):
    """It is gone from the next sample; whoever gets its number is another."""
    machine.add_process(4000, *IPYTHON)
    processes(live)
    machine.end_process(4000)
    assert processes(live) == {}
    machine.add_process(4000, "sleep", "9", began=2000)
    assert processes(live) == {}


def test_a_number_that_goes_on_at_once(machine, live):
    """A kernel's number may be another's by the next sample."""
    machine.add_process(4000, *IPYTHON)
    assert set(processes(live)) == {4000}
    machine.add_process(4000, "sleep", "9", began=2000)
    assert processes(live) == {}


def test_a_kernel_that_was_seen_before_its_exec(machine, live):
    """A new process still has its parent's arguments: it is read again."""
    machine.add_process(4000, "jupyter-lab")
    assert processes(live) == {}
    machine.add_process(4000, *IPYTHON)
    assert set(processes(live)) == {4000}


def test_a_number_that_went_to_another_unseen(machine, live):
    """Every process is read again now and then, so that no kernel stays unknown for long."""
    machine.add_process(4000, "sleep")
    for _ in range(3):
        processes(live)
    machine.add_process(4000, *IPYTHON, began=2000)
    for _ in range(30):
        found = processes(live)
    assert set(found) == {4000}


# GPUs


def test_a_process_on_gpus(machine, nvml, live):
    """Whoever uses a GPU is listed, with its memory on each; once, though it draws as well."""
    machine.add_process(77, "python", "train.py", name="python")
    nvml.devices[0].compute = [Process(77, 3 * GIB)]
    nvml.devices[0].graphics = [Process(77, 3 * GIB)]
    nvml.devices[1].compute = [Process(77, None)]
    (one,) = processes(live).values()
    assert (one.kind, one.name, one.kernel_id) == ("other", "python", None)
    assert [share.index for share in one.gpus] == [0, 1]
    assert one.gpus[0].memory_used_bytes == 3 * GIB
    assert "does not report" in one.gpus[1].memory_used_bytes.reason


def test_a_kernel_on_a_gpu(machine, nvml, live):
    """A kernel that computes in its own process is one line, with its GPU."""
    machine.add_process(4000, *IPYTHON)
    nvml.devices[1].compute = [Process(4000, GIB)]
    (one,) = processes(live).values()
    assert (one.kind, [share.index for share in one.gpus]) == ("kernel", [1])


def test_a_script_that_a_kernel_started(machine, nvml, live):
    """The GPU use of a notebook's `!python train.py` is reported for its kernel."""
    machine.add_process(4000, *IPYTHON)
    machine.add_process(4001, "bash", "-c", "python train.py", parent=4000)
    machine.add_process(4002, "python", "train.py", parent=4001)
    nvml.devices[0].compute = [Process(4002, GIB)]
    one = processes(live)[4002]
    assert (one.kind, one.kernel_id) == ("other", KERNEL)


def test_mig_devices_of_one_gpu(machine, tmp_path):
    """Memory on the MIG devices of a GPU is added up: they share its index."""
    device = mig_a100()
    for part in device.mig:
        part.compute = [Process(77, GIB)]
    machine.add_process(77, "train")
    with Sampler(
        **machine.roots, nvml=FakeNvml(device), ranks=tmp_path / "r", time_limit_s=FAR_S
    ) as live:
        (one,) = live.sample().processes
    assert [(share.index, share.memory_used_bytes) for share in one.gpus] == [(0, 2 * GIB)]


def test_a_process_that_cannot_be_seen(nvml, live):
    """The driver's list is kept, though `/proc` does not have the process."""
    nvml.devices[0].compute = [Process(123_456, GIB)]
    (one,) = processes(live).values()
    assert (one.kind, one.name) == ("other", HIDDEN.reason)
    assert one.cpu_percent == one.memory_bytes == HIDDEN
    assert one.gpus[0].memory_used_bytes == GIB


def test_gpus_of_a_container(machine, tmp_path):
    """The driver's number may be another process's: only one with its files open counts."""
    machine.set_pid_namespace(4026532000)
    machine.add_process(50, "sleep", name="sleep")
    machine.add_process(60, "python", name="train", opened=["/dev/null", "/dev/nvidia0"])
    device = h100(compute=[Process(50, GIB), Process(60, 2 * GIB)])
    with Sampler(
        **machine.roots, nvml=FakeNvml(device), ranks=tmp_path / "r", time_limit_s=FAR_S
    ) as live:
        found = {one.name: one for one in live.sample().processes}
    assert set(found) == {"train", HIDDEN.reason}
    assert found["train"].gpus[0].memory_used_bytes == 2 * GIB
    assert found[HIDDEN.reason].pid == 50


def test_no_driver(machine, tmp_path):
    """Without a driver, kernels are listed all the same."""
    machine.add_process(4000, *IPYTHON)
    nvml = FakeNvml(init_error=DRIVER_NOT_LOADED)
    with Sampler(**machine.roots, nvml=nvml, ranks=tmp_path / "r", time_limit_s=FAR_S) as live:
        assert [one.kind for one in live.sample().processes] == ["kernel"]


def test_no_proc(machine, tmp_path):
    """A `/proc` that cannot be listed leaves the processes unknown."""
    with Sampler(
        sysfs=machine.sysfs, procfs=tmp_path / "none", nvml=FakeNvml(), ranks=tmp_path
    ) as live:
        assert "/proc cannot be read" in live.sample().processes.reason


# Ranks


def test_ranks_of_someone_else(machine, live):
    """A child of an agent is a rank, though only its owner can read of which cluster."""
    machine.add_process(4100, *AGENT, parent=4000)
    machine.add_process(4101, *AGENT, parent=4100)
    machine.add_process(4102, *AGENT, parent=4101)  # a worker that the rank has forked
    (rank,) = processes(live).values()
    assert (rank.pid, rank.kind, rank.cluster, rank.rank) == (4101, "rank", None, None)


def test_a_rank_says_who_it_is(machine, live, tmp_path):
    """Its notice has cluster and number; after a resize, the new number."""
    machine.add_process(os.getpid(), *AGENT)
    for number in (3, 1):
        register_rank("storm-7", number, tmp_path / "ranks")
        (rank,) = processes(live).values()
        assert (rank.kind, rank.cluster, rank.rank) == ("rank", "storm-7", number)


def test_a_worker_of_a_rank(machine, nvml, live, tmp_path):
    """A process that a rank started is reported for its rank."""
    machine.add_process(os.getpid(), *AGENT)
    machine.add_process(900_001, "python", parent=os.getpid())
    nvml.devices[0].compute = [Process(900_001, GIB)]
    register_rank("storm-7", 3, tmp_path / "ranks")
    worker = processes(live)[900_001]
    assert (worker.kind, worker.cluster, worker.rank) == ("other", "storm-7", 3)


def test_the_notice_of_a_rank_that_has_ended(machine, live, tmp_path):
    """Whoever gets the number of a rank that has ended is none."""
    machine.add_process(os.getpid(), *AGENT)
    register_rank("storm-7", 3, tmp_path / "ranks")
    assert set(processes(live)) == {os.getpid()}
    machine.end_process(os.getpid())
    assert processes(live) == {}


def test_nobody_posts_in_anothers_folder(tmp_path):
    """A folder that is a link, or another's, is neither written nor read."""
    (tmp_path / "real").mkdir()
    (tmp_path / "ranks").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError):
        register_rank("storm-7", 3, tmp_path / "ranks")
    assert list((tmp_path / "real").iterdir()) == []


# Real processes


def test_a_real_kernel(tmp_path):
    """A kernel started as Jupyter's server does is found by its id, and goes with its end."""
    # by default, the connection file goes into the working directory, which may be read-only
    manager = MultiKernelManager(connection_dir=str(tmp_path))
    kernel_id = manager.start_kernel()
    with Sampler(nvml=FakeNvml()) as live:

        def found():
            return [one for one in live.sample().processes if one.kernel_id == kernel_id]

        try:
            assert eventually(found)
            (kernel,) = found()
            assert (kernel.kind, kernel.pid) == (
                "kernel",
                manager.get_kernel(kernel_id).provisioner.pid,
            )
            assert kernel.memory_bytes > 1 << 20
            json.dumps(live.sample().to_plain())
        finally:
            manager.shutdown_kernel(kernel_id, now=True)
        assert eventually(lambda: not found())


def test_real_ranks(cluster):
    """The ranks of a cluster are found with their numbers, whoever they become."""
    with Sampler(nvml=FakeNvml()) as live:

        def found():
            ours = [one for one in live.sample().processes if one.cluster == cluster.name]
            return {(one.rank, one.pid, one.kind) for one in ours}

        def told():
            return {(rank.rank, rank.pid, "rank") for rank in cluster.ranks}

        assert found() == told()
        before = told()
        cluster.restart(ranks=[0])
        assert told() != before
        assert eventually(lambda: found() == told())


def test_a_complete_host(tmp_path, machine):
    """Eight ranks on eight GPUs: each has its own, and the kernel that started them has none."""
    nvml = build_hgx(machine, processes=50)
    with Sampler(**machine.roots, nvml=nvml, ranks=tmp_path / "ranks") as live:
        found = processes(live)
    assert {pid: one.kind for pid, one in found.items()} == {
        KERNEL_PID: "kernel",
        **dict.fromkeys(RANKS, "rank"),
    }
    assert [share.index for pid in RANKS for share in found[pid].gpus] == list(range(8))
    assert found[KERNEL_PID].gpus == ()
