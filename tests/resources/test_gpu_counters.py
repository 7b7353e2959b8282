"""The changing values of a GPU: clocks, links, PCIe, and idle time with memory allocated."""

from __future__ import annotations

import time

import pytest
from fake_nvml import (
    GIB,
    NO_PERMISSION,
    FakeNvml,
    Link,
    Process,
    h100,
    mig_a100,
    vgpu,
)
from nvml_machines import H100_STATE, hgx_h100
from timers import FAR_S, eventually

from workbench.resources import Unknown
from workbench.resources.counters import Sampler

SECOND_US = 1_000_000
NOW_US = 1_763_700_000 * SECOND_US
NOT_REPORTED = Unknown("not reported by the driver for this device")
FIRST = Unknown("needs two samples")


def sampler(machine, nvml, **options):
    options.setdefault("time_limit_s", FAR_S)
    return Sampler(**machine.roots, nvml=nvml, **options)


def linked(*links, **changes):
    """An H100 with some links, and an NVML whose clock only moves when it is set."""
    device = h100(**{**H100_STATE, "links": links, **changes})
    nvml = FakeNvml(device)
    nvml.field_us = NOW_US
    return nvml, device


def nvlink(machine, nvml, *changes, step_us=SECOND_US):
    """Sent and received after each change, from a sample before the first one."""
    found = []
    with sampler(machine, nvml) as live:
        live.sample()
        for change in changes:
            change()
            nvml.field_us += step_us
            (gpu,) = live.sample().gpus
            found.append((gpu.nvlink_tx_bytes_per_s, gpu.nvlink_rx_bytes_per_s))
    return found


# Clocks and power


def test_clocks_and_the_power_limit(machine):
    """Clocks are in MHz, the enforced limit in watts, and what limits the clocks in words."""
    nvml = hgx_h100()
    nvml.devices[0].held = 0x4 | 0x20
    with sampler(machine, nvml) as live:
        gpus = live.sample().gpus
    assert (gpus[0].sm_clock_mhz, gpus[0].memory_clock_mhz) == (345, 2619)
    assert gpus[0].power_limit_w == 700.0
    assert gpus[0].held_by == ("power cap", "thermal (software)")
    assert gpus[1].held_by == ("idle",)


def test_vgpu_reports_little(machine):
    """A guest's driver has no power limit, links or PCIe counters: all are unknown, not zero."""
    with sampler(machine, FakeNvml(vgpu())) as live:
        live.sample()
        gpu = after_a_round(live)
    for value in (gpu.power_limit_w, gpu.held_by, gpu.nvlink_tx_bytes_per_s):
        assert value == NOT_REPORTED
    assert gpu.pcie_tx_bytes_per_s == gpu.pcie_rx_bytes_per_s == NOT_REPORTED


def test_mig_device(machine):
    """A MIG device has no NVLink; what NVML refuses for it has NVML's words."""
    with sampler(machine, FakeNvml(mig_a100())) as live:
        gpu = live.sample().gpus[0]
    assert gpu.nvlink_tx_bytes_per_s == Unknown("a MIG device has no NVLink")
    assert gpu.power_limit_w == NOT_REPORTED
    assert gpu.idle_s == 0.0  # nothing is allocated on it


def test_mig_device_in_use(machine):
    """Whether a MIG device idles is unknown: NVML has no utilization for it."""
    nvml = FakeNvml(mig_a100())
    nvml.devices[0].mig[0].compute = [Process(77, GIB)]
    with sampler(machine, nvml) as live:
        assert live.sample().gpus[0].idle_s == NOT_REPORTED


# NVLink


def test_links_add_up(machine):
    """The counters of all links, in KiB, over the time that the driver gives with them."""
    links = [Link(sent=10**9, received=5) for _ in range(18)]
    nvml, _ = linked(*links)

    def change():
        for link in links:
            link.sent += 1000
            link.received += 10

    ((tx, rx),) = nvlink(machine, nvml, change, step_us=2 * SECOND_US)
    assert tx == pytest.approx(18 * 1000 * 1024 / 2)
    assert rx == pytest.approx(18 * 10 * 1024 / 2)


def test_the_first_sample_has_no_link_rate(machine):
    """A rate needs two readings."""
    nvml, _ = linked(Link())
    with sampler(machine, nvml) as live:
        assert live.sample().gpus[0].nvlink_tx_bytes_per_s == FIRST


def test_a_link_that_was_reset_does_not_spike_the_sum(machine):
    """One link's counter goes back: the sum is unknown for that interval, then right again."""
    links = [Link(sent=10**12) for _ in range(4)]
    nvml, _ = linked(*links)

    def add():
        for link in links:
            link.sent += 100

    def reset():
        add()
        links[2].sent = 7

    before, during, after = nvlink(machine, nvml, add, reset, add)
    assert before[0] == after[0] == pytest.approx(4 * 100 * 1024)
    assert "wrapped or was reset" in during[0].reason
    assert during[1] == 0.0  # what was received goes on


def test_a_link_that_goes_down(machine):
    """The other links carry all there is; one that comes up again needs two readings."""
    links = [Link(sent=0) for _ in range(2)]
    nvml, _ = linked(*links)

    def add(down):
        for link in links:
            link.sent = (link.sent or 0) + 100
        if down:
            links[1].sent = None

    down, up, again = nvlink(
        machine, nvml, lambda: add(down=True), lambda: add(down=False), lambda: add(down=False)
    )
    assert down[0] == pytest.approx(100 * 1024)
    assert up[0] == FIRST
    assert again[0] == pytest.approx(2 * 100 * 1024)


def test_newer_counters(machine):
    """A driver that has only the newer fields counts bytes."""
    link = Link(sent=0)
    nvml, _ = linked(link, link_fields=(202, 204))

    def change():
        link.sent += 5000

    ((tx, rx),) = nvlink(machine, nvml, change)
    assert (tx, rx) == (pytest.approx(5000), 0.0)


def test_links_that_do_not_count(machine):
    """Links without counters give no rate, rather than zero."""
    nvml, _ = linked(Link(sent=None, received=None))
    with sampler(machine, nvml) as live:
        live.sample()
        assert live.sample().gpus[0].nvlink_tx_bytes_per_s == NOT_REPORTED


def test_a_driver_that_has_not_counted_again(machine):
    """Two readings of one moment give no rate: neither zero nor without end."""
    link = Link(sent=0)
    nvml, _ = linked(link)
    ((tx, _),) = nvlink(machine, nvml, lambda: None, step_us=0)
    assert tx == Unknown("no time passed between two readings of the counter")


def test_gpu_lost_in_mid_run(machine):
    """A GPU that falls off the bus takes its links' rates with it; its name stays."""
    nvml, device = linked(Link())
    with sampler(machine, nvml) as live:
        before = live.sample().gpus[0]
        device.lost = True
        gpu = live.sample().gpus[0]
    assert gpu.uuid == before.uuid
    for value in (gpu.nvlink_tx_bytes_per_s, gpu.held_by, gpu.sm_clock_mhz, gpu.idle_s):
        assert "lost" in value.reason


def test_hanging_driver(machine):
    """While NVML hangs, all of its values have that as their reason."""
    nvml, _ = linked(Link(), compute=[Process(77, GIB)])
    machine.add_process(77, "train")
    with sampler(machine, nvml, time_limit_s=3) as live:
        live.sample()
        nvml.answers.clear()
        try:
            during = live.sample()
        finally:
            nvml.answers.set()
    (gpu,) = during.gpus
    why = Unknown("NVML did not answer within 3 s")
    for value in (gpu.held_by, gpu.pcie_tx_bytes_per_s, gpu.nvlink_rx_bytes_per_s, gpu.idle_s):
        assert value == why
    ((share,),) = (one.gpus for one in during.processes)
    assert share.memory_used_bytes == why


# PCIe


def after_a_round(live):
    """Return the first GPU once NVML has measured its link, apart from the samples."""

    def measured():
        return live.sample().gpus[0].pcie_tx_bytes_per_s != FIRST

    assert eventually(measured)
    return live.sample().gpus[0]


def test_pcie_as_nvml_measures_it(machine):
    """Without counters, NVML's own figure of the last round: KB/s."""
    with sampler(machine, hgx_h100()) as live:
        assert live.sample().gpus[0].pcie_tx_bytes_per_s == FIRST
        gpu = after_a_round(live)
    assert (gpu.pcie_tx_bytes_per_s, gpu.pcie_rx_bytes_per_s) == (502_000.0, 578_000.0)


def test_pcie_by_counters(machine):
    """Byte counters that have passed 32 bits give the rate between samples."""
    nvml, device = linked(pcie_bytes=(1 << 40, 1 << 41))
    with sampler(machine, nvml) as live:
        live.sample()
        device.pcie_bytes = ((1 << 40) + 3_000_000, 1 << 41)
        nvml.field_us += SECOND_US
        (gpu,) = live.sample().gpus
    assert gpu.pcie_tx_bytes_per_s == pytest.approx(3_000_000)
    assert gpu.pcie_rx_bytes_per_s == 0.0


def test_pcie_counters_that_may_wrap_unseen(machine):
    """A counter that may have 32 bits wraps many times a second: NVML's figure is used instead."""
    nvml, device = linked(pcie_bytes=(1000, 1000))
    with sampler(machine, nvml) as live:
        live.sample()
        device.pcie_bytes = (4_000_000_000, 2000)
        nvml.field_us += SECOND_US
        gpu = after_a_round(live)
    assert (gpu.pcie_tx_bytes_per_s, gpu.pcie_rx_bytes_per_s) == (502_000.0, 578_000.0)


def test_pcie_that_hangs_costs_only_itself(machine):
    """A measurement that does not come back leaves the samples moving, and the end too."""
    nvml = hgx_h100()
    nvml.hanging.add("nvmlDeviceGetPcieThroughput")
    try:
        with sampler(machine, nvml, time_limit_s=3) as live:
            live.sample()
            gpu = live.sample().gpus[0]
            assert gpu.pcie_tx_bytes_per_s == FIRST
            assert gpu.utilization_percent == 37.0
    finally:
        nvml.released.set()


# Idle with memory allocated


def held(**changes):
    return h100(**{"utilization": 0, "compute": [Process(77, GIB)], **changes})


def test_idle_counts_while_a_process_has_memory(machine):
    """The time grows from sample to sample, and starts again after work."""
    device = held()
    with sampler(machine, FakeNvml(device)) as live:
        assert live.sample().gpus[0].idle_s == 0.0
        time.sleep(0.05)
        first = live.sample().gpus[0].idle_s
        assert first >= 0.05
        time.sleep(0.05)
        assert live.sample().gpus[0].idle_s >= first + 0.05
        device.utilization = 3
        assert live.sample().gpus[0].idle_s == 0.0
        device.utilization = 0
        assert live.sample().gpus[0].idle_s == 0.0


def test_a_free_gpu_is_not_idle(machine):
    """Nothing allocated: zero, however long nothing runs."""
    with sampler(machine, FakeNvml(held(compute=[]))) as live:
        live.sample()
        time.sleep(0.02)
        assert live.sample().gpus[0].idle_s == 0.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"utilization": None}, NOT_REPORTED),
        ({"compute": None}, NOT_REPORTED),
    ],
)
def test_idle_that_is_unknown(machine, changes, reason):
    """Without utilization, or without the list of processes, the time is not known."""
    with sampler(machine, FakeNvml(held(**changes))) as live:
        assert live.sample().gpus[0].idle_s == reason


def test_idle_in_a_container(machine):
    """A container does not see who else is on the machine: whether its GPU is in use is unknown."""
    machine.set_pid_namespace(4026532000)
    with sampler(machine, FakeNvml(held(compute=[]))) as live:
        assert "container" in live.sample().gpus[0].idle_s.reason


def test_idle_is_not_counted_while_nvml_hangs(machine):
    """A period without samples does not count as idle: the time starts again."""
    nvml = FakeNvml(held())
    with sampler(machine, nvml, time_limit_s=3) as live:
        live.sample()
        nvml.answers.clear()
        live.sample()
        nvml.answers.set()
        seen = []

        def answered():
            seen.append(live.sample().gpus[0].idle_s)
            return not isinstance(seen[-1], Unknown)

        assert eventually(answered)
    assert seen[-1] == 0.0


def test_processes_need_permission(machine):
    """A list that the driver refuses is no empty list."""
    nvml = FakeNvml(held())
    nvml.refused["nvmlDeviceGetComputeRunningProcesses_v3"] = NO_PERMISSION
    with sampler(machine, nvml) as live:
        assert live.sample().gpus[0].idle_s == Unknown("needs root")
