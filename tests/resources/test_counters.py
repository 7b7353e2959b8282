"""The live sampler turns counters into rates."""

from __future__ import annotations

import json
import time

import pytest
from fake_machine import Machine, roce_gids
from fake_nvml import DRIVER_NOT_LOADED, FakeNvml, h100, mig_a100, vgpu
from timers import FAR_S

from workbench.resources import Unknown
from workbench.resources.codec import decode
from workbench.resources.counters import Sampler
from workbench.resources.usage import Rate, Sample


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path, cpus=64)


def sampler(machine, nvml=None, **options):
    options.setdefault("time_limit_s", FAR_S)
    return Sampler(**machine.roots, nvml=nvml or FakeNvml(), **options)


# Rates


def test_rate_divides_by_the_readings_own_times():
    """The rate is the difference by the time between the two readings."""
    rate = Rate()
    assert rate.update(1000, 10.0) == Unknown("needs two samples")
    assert rate.update(4000, 10.5) == 6000.0
    assert rate.update(4000, 12.5) == 0.0


def test_rate_of_a_counter_that_went_back():
    """A counter that wrapped or was reset gives no rate for that interval, then continues."""
    rate = Rate()
    rate.update(2**32 - 10, 0.0)
    back = rate.update(90, 1.0)
    assert isinstance(back, Unknown)
    assert "wrapped or was reset" in back.reason
    assert rate.update(190, 2.0) == 100.0


def test_rate_after_a_gap():
    """After a reading that failed, the next one starts again: no average over the gap."""
    rate = Rate()
    rate.update(0, 0.0)
    assert rate.update(Unknown("needs root"), 1.0) == Unknown("needs root")
    assert rate.update(1_000_000, 2.0) == Unknown("needs two samples")


def test_rate_without_time():
    """Two readings at the same moment give no rate rather than an infinite one."""
    rate = Rate()
    rate.update(0, 1.0)
    assert isinstance(rate.update(5, 1.0), Unknown)


# CPU and memory


def test_first_sample_has_no_rates(machine):
    """Rates need two samples; what is a level is there at once."""
    machine.add_interface("eth0")
    with sampler(machine, FakeNvml(h100())) as live:
        sample = live.sample()
    assert sample.cpu.percent == Unknown("needs two samples")
    assert sample.nics[0].tx_bytes_per_s == Unknown("needs two samples")
    assert sample.gpus[0].utilization_percent == 37.0
    assert abs(sample.time - time.time()) < 60


def test_cpu_that_does_nothing(machine):
    """CPUs that stayed idle are at 0 %: known, and zero."""
    with sampler(machine) as live:
        live.sample()
        assert live.sample().cpu.percent == 0.0


@pytest.mark.parametrize("text", ["", "cpu\n\ncpu0 1\n"])
def test_cpu_that_the_kernel_does_not_report(machine, text):
    """A container that hides the CPUs in /proc/stat has an unknown use, not 0 %."""
    machine.write(machine.procfs / "stat", text)
    with sampler(machine) as live:
        live.sample()
        assert "does not list" in live.sample().cpu.percent.reason


def test_cpu_is_never_above_100(machine):
    """Ticks that were counted late do not show as more than all CPUs."""
    with sampler(machine) as live:
        live.sample()
        machine.set_busy_ticks(10_000, cpus=64)
        assert live.sample().cpu.percent == 100.0


def test_cpu_of_a_container_with_a_quota(machine):
    """Under a quota the container's own use counts, not the VM's."""
    machine.write(machine.sysfs / "fs/cgroup/cpu.max", "100000 100000\n")
    machine.write(machine.sysfs / "fs/cgroup/cpu.stat", "usage_usec 5000\nnr_periods 1\n")
    with sampler(machine) as live:
        live.sample()
        machine.set_busy_ticks(10_000, cpus=64)  # the neighbours
        assert live.sample().cpu.percent == 0.0


def test_memory_of_the_vm(machine):
    """Used is what is not available: file cache that can be dropped is not used."""
    with sampler(machine) as live:
        memory = live.sample().memory
    assert memory.total_bytes == 65_536_000 * 1024
    assert memory.used_bytes == (65_536_000 - 49_152_000) * 1024


def test_memory_of_a_container(machine):
    """Under a limit the container's own memory counts, without its inactive file cache."""
    group = machine.sysfs / "fs/cgroup"
    machine.write(group / "memory.max", f"{4 << 30}\n")
    machine.write(group / "memory.current", f"{3 << 30}\n")
    machine.write(group / "memory.stat", f"anon 1\ninactive_file {1 << 30}\n")
    with sampler(machine) as live:
        memory = live.sample().memory
    assert (memory.used_bytes, memory.total_bytes) == (2 << 30, 4 << 30)


# GPUs


def test_gpu(machine):
    """Power comes in watts, memory as used and total."""
    with sampler(machine, FakeNvml(h100())) as live:
        (gpu,) = live.sample().gpus
    assert (gpu.power_w, gpu.temperature_c) == (71.25, 31)
    assert gpu.memory_used_bytes == 85_520_809_984 // 4
    assert gpu.memory_total_bytes == 85_520_809_984


def test_memory_of_an_old_driver(machine):
    """It does not tell apart what processes use and what is reserved."""
    gpu = h100(memory=8 << 30, reserved=1 << 30, memory_v2=False)
    with sampler(machine, FakeNvml(gpu)) as live:
        (use,) = live.sample().gpus
    assert (use.memory_used_bytes, use.memory_total_bytes) == (3 << 30, 8 << 30)


def test_reserved_memory_is_not_used(machine):
    """As in nvidia-smi."""
    with sampler(machine, FakeNvml(h100(memory=8 << 30, reserved=1 << 30))) as live:
        (gpu,) = live.sample().gpus
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes) == (2 << 30, 8 << 30)


def test_vgpu_without_power_and_temperature(machine):
    """Values that a vGPU guest's driver does not report are unknown with the reason, not zero."""
    with sampler(machine, FakeNvml(vgpu())) as live:
        (gpu,) = live.sample().gpus
    assert gpu.power_w == Unknown("not reported by the driver for this device")
    assert isinstance(gpu.temperature_c, Unknown)
    assert gpu.utilization_percent == 37.0


def test_mig_devices(machine):
    """MIG devices are sampled one by one; their use is not reported by NVML."""
    with sampler(machine, FakeNvml(mig_a100())) as live:
        gpus = live.sample().gpus
    assert [gpu.uuid[:4] for gpu in gpus] == ["MIG-", "MIG-"]
    assert isinstance(gpus[0].utilization_percent, Unknown)
    assert gpus[0].memory_total_bytes == 20_937_965_568


def test_no_driver(machine):
    """Without a driver there are no GPUs in the sample, and the rest is there."""
    with sampler(machine, FakeNvml(init_error=DRIVER_NOT_LOADED)) as live:
        assert live.sample().gpus == ()
        assert live.sample().cpu.percent == 0.0


def test_nvml_stays_open(machine):
    """NVML is opened once for all samples, and let go at the end."""
    nvml = FakeNvml(h100())
    with sampler(machine, nvml) as live:
        for _ in range(3):
            live.sample()
        assert (nvml.inits, nvml.opened) == (1, 1)
    assert nvml.opened == 0


def test_gpu_lost_while_sampling(machine):
    """A GPU that falls off the bus has that as its reason from then on; the sampler continues."""
    device = h100()
    with sampler(machine, FakeNvml(device)) as live:
        live.sample()
        device.lost = True
        (gpu,) = live.sample().gpus
    assert "lost" in gpu.utilization_percent.reason


def test_hanging_driver_does_not_stop_the_rest(machine):
    """While NVML hangs its GPUs have that reason; CPU, memory and NICs continue."""
    nvml = FakeNvml(h100())
    with sampler(machine, nvml, time_limit_s=3) as live:
        (before,) = live.sample().gpus
        nvml.answers.clear()
        try:
            during = live.sample()
        finally:
            nvml.answers.set()
    (gpu,) = during.gpus
    assert gpu.utilization_percent == Unknown("NVML did not answer within 3 s")
    assert gpu.uuid == before.uuid
    assert during.cpu.percent == 0.0


# NICs


def rates_after(machine, change, seconds=0.05):
    """Sample, change the counters, sample again: the NICs by name, and the longest
    that can have passed between the two readings of a counter; `seconds` is the shortest.
    """
    with sampler(machine) as live:
        started = time.monotonic()
        live.sample()
        time.sleep(seconds)
        change()
        nics = {nic.name: nic for nic in live.sample().nics}
        return nics, time.monotonic() - started


def test_plain_nic(machine):
    """Bytes per second come from the interface's counters."""
    machine.add_interface("eth0")
    nics, elapsed = rates_after(machine, lambda: machine.set_bytes("eth0", 1000, 3000))
    assert 1000 / elapsed <= nics["eth0"].tx_bytes_per_s <= 1000 / 0.05
    assert 3000 / elapsed <= nics["eth0"].rx_bytes_per_s <= 3000 / 0.05
    assert nics["eth0"].rdma_tx_bytes_per_s == Unknown("plain NIC: no RDMA device")


def test_infiniband_counts_words(machine):
    """RDMA counters count words of four bytes."""
    machine.add_rdma("mlx5_0", device=machine.add_pci("0000:1a:00.0"))
    nics, elapsed = rates_after(machine, lambda: machine.set_rdma_words("mlx5_0", 1000, 0))
    assert 4000 / elapsed <= nics["mlx5_0"].tx_bytes_per_s <= 4000 / 0.05
    assert nics["mlx5_0"].rdma_tx_bytes_per_s == nics["mlx5_0"].tx_bytes_per_s
    assert nics["mlx5_0"].rx_bytes_per_s == 0.0


def test_roce_adds_the_kernels_traffic(machine):
    """On RoCE the kernel's counters leave RDMA out, so the two add up."""
    pci = machine.add_pci("0000:3b:00.0")
    machine.add_interface("ens1", device=pci)
    machine.add_rdma("mlx5_0", device=pci, link_layer="Ethernet", gids=roce_gids("ens1"))

    def change():
        machine.set_bytes("ens1", 4000, 0)
        machine.set_rdma_words("mlx5_0", 1000, 0)

    nics, elapsed = rates_after(machine, change)
    nic = nics["ens1"]
    assert 4000 / elapsed <= nic.rdma_tx_bytes_per_s <= 4000 / 0.05
    assert 8000 / elapsed <= nic.tx_bytes_per_s <= 8000 / 0.05
    assert nic.tx_bytes_per_s > nic.rdma_tx_bytes_per_s
    assert list(nics) == ["ens1"]


def test_pvrdma_has_no_counters(machine):
    """PVRDMA cannot be measured: unknown with that reason; the interface's bytes are there."""
    pci = machine.add_pci("0000:0b:00.1", vendor="0x15ad")
    machine.add_interface("ens192", device=pci)
    machine.add_rdma(
        "vmw_pvrdma0", device=pci, hca_type="VMW_PVRDMA-1.0.1.0-k", link_layer="Ethernet",
        gids=roce_gids("ens192"), counters=False,
    )  # fmt: skip
    nics, _ = rates_after(machine, lambda: machine.set_bytes("ens192", 5000, 0))
    nic = nics["ens192"]
    assert nic.rdma_tx_bytes_per_s == Unknown("no counters for PVRDMA: its driver has none")
    assert nic.tx_bytes_per_s > 0


def test_nic_reset_is_no_spike(machine):
    """An interface whose driver was loaded again has no rate for that interval."""
    machine.add_interface("eth0")
    machine.set_bytes("eth0", 10**12, 0)
    nics, _ = rates_after(machine, lambda: machine.set_bytes("eth0", 10, 0))
    assert isinstance(nics["eth0"].tx_bytes_per_s, Unknown)


def test_sample_is_plain_json(machine):
    """A sample can be sent without conversion; what is unknown has its reason."""
    with sampler(machine, FakeNvml(vgpu())) as live:
        sample = live.sample()
    plain = json.loads(json.dumps(sample.to_plain()))
    assert decode(Sample, plain, "") == sample
    assert set(plain) == {"time", "cpu", "memory", "gpus", "nics", "processes"}
    assert plain["cpu"] == {"percent": {"unknown": "needs two samples"}}
    assert set(plain["gpus"][0]["power_w"]) == {"unknown"}
