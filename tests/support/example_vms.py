"""The VMs of `notebooks/04-what-was-i-given.ipynb`.

Run ``python tests/support/example_vms.py`` to write their files again.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from fake_machine import Machine, roce_gids, snap
from nvml_machines import a100_guest
from pci_host import add_bridge, add_gpu

from workbench.resources import UNLIMITED, NcclSettings

FOLDER = Path(__file__).parents[2] / "notebooks" / "examples"
GPUS, NIC = ("0000:02:00.0", "0000:03:00.0"), "0000:0b:00.0"


def contents() -> dict[str, str]:
    """The text of every file, by its name."""
    return {
        "vm1.json": _guest("vm1"),
        "vm2.json": _guest("vm2", licensed=False, mtu=1500, shm_bytes=64 << 20),
        "vm1-topology.xml": _host(),
    }


def _guest(name: str, *, licensed: bool = True, mtu: int = 9000, **host: object) -> str:
    """A guest of VMware with two full A100 vGPUs and a virtual function of a ConnectX."""
    with tempfile.TemporaryDirectory() as root:
        machine = Machine(Path(root))
        machine.set_dmi("VMware, Inc.", "VMware7,1")
        machine.write(machine.procfs / "sys/kernel/hostname", f"{name}\n")
        for address in GPUS:
            add_gpu(machine, address, numa=-1)
        port = machine.add_pci(NIC, numa=-1, driver="mlx5_core")
        machine.add_interface("ens192", device=port, mtu=mtu)
        machine.add_rdma(
            "mlx5_0",
            device=port,
            hca_type="MT4126",
            rate="100 Gb/sec (4X EDR)",
            link_layer="Ethernet",
            gids=roce_gids("ens192"),
        )
        nvml = a100_guest("A100-40C", 40, 2, licensed=licensed)
        taken = snap(machine, nvml, nccl=NcclSettings({}, Path(root)))
        values = {"cpus": 16, "cpus_total": 16, "memory_bytes": 128 << 30, "shm_bytes": 8 << 30,
                  "memlock_bytes": UNLIMITED, "open_files": 65536, "container": "none",
                  "os": "Ubuntu 24.04.2 LTS", "usable_numa_nodes": (0, 1), **host}  # fmt: skip
        probes = {part: replace(probe, elapsed_ms=0.0) for part, probe in taken.probes.items()}
        fixed = replace(
            taken, host=replace(taken.host, **values), taken_at=1_735_000_000.0, probes=probes
        )
        own_gpus = f"GPU-b1a11e1{name[-1]}"
        return fixed.to_json().replace(root, "").replace("GPU-b1a11e11", own_gpus) + "\n"


def _host() -> str:
    """Where the guest's devices really are: below one switch of the host."""
    with tempfile.TemporaryDirectory() as root:
        machine = Machine(Path(root))
        upstream = add_bridge(machine, "0000:01:00.0", add_bridge(machine, "0000:00:01.0"))
        for number, address in enumerate(GPUS):
            add_gpu(machine, address, add_bridge(machine, f"0000:05:0{number}.0", upstream))
        port = machine.add_pci(NIC, above=add_bridge(machine, "0000:05:02.0", upstream))
        machine.add_rdma("mlx5_0", device=port)
        return snap(machine).to_nccl_topology()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in contents().items():
        (FOLDER / name).write_text(text)
