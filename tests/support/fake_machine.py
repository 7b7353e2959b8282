"""A machine's /sys and /proc as folders, with the values of real devices."""

from __future__ import annotations

import shutil
from pathlib import Path

from fake_nvml import FakeNvml

from workbench.resources import NcclSettings, take_snapshot

CPUINFO_VM = "processor\t: 0\nflags\t\t: fpu sse2 hypervisor avx2\n"
CPUINFO_BARE = "processor\t: 0\nflags\t\t: fpu sse2 avx2\n"
MEMINFO = "MemTotal:       65536000 kB\nMemFree: 1 kB\nMemAvailable:   49152000 kB\n"
STAT = """cpu  {0} 0 0 0 0 0 0 0 0 0
{1}
intr 12345
"""


class Machine:
    """Builds the two trees below `root`; every `add_` writes what a kernel would."""

    def __init__(self, root: Path, cpus: int = 8) -> None:
        self.sysfs = root / "sys"
        self.procfs = root / "proc"
        self.devfs = root / "dev"
        self.write(self.procfs / "sys/kernel/hostname", "vm-17\n")
        self.write(self.procfs / "sys/kernel/osrelease", "6.1.0-28-amd64\n")
        self.write(self.procfs / "cpuinfo", CPUINFO_VM)
        self.write(self.procfs / "meminfo", MEMINFO)
        self.write(self.procfs / "self/cgroup", "0::/\n")
        self.set_pid_namespace(4026531836)
        self.set_busy_ticks(0, cpus)
        self.devfs.mkdir(parents=True)
        self.set_clock_source("tsc")
        (self.sysfs / "fs/cgroup").mkdir(parents=True)
        (self.sysfs / "bus/pci/devices").mkdir(parents=True)
        for node in (0, 1):
            (self.sysfs / f"devices/system/node/node{node}").mkdir(parents=True)

    @property
    def roots(self):
        return {"sysfs": self.sysfs, "procfs": self.procfs}

    def write(self, path: Path, text) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))

    def set_dmi(self, vendor: str, product: str) -> None:
        self.write(self.sysfs / "class/dmi/id/sys_vendor", f"{vendor}\n")
        self.write(self.sysfs / "class/dmi/id/product_name", f"{product}\n")

    def set_clock_source(self, name: str) -> None:
        self.write(
            self.sysfs / "devices/system/clocksource/clocksource0/current_clocksource", f"{name}\n"
        )

    def set_busy_ticks(self, ticks: int, cpus: int = 8) -> None:
        """Every CPU was busy for so many ticks in user mode."""
        rows = "\n".join(f"cpu{n} {ticks} 0 0 1000 0 0 0 0 0 0" for n in range(cpus))
        self.write(self.procfs / "stat", STAT.format(ticks * cpus, rows))

    def add_pci(
        self,
        address: str,
        *,
        vendor="0x15b3",
        device="",
        pci_class="0x020000",
        numa=0,
        driver="",
        above: Path | str = "pci0000:00",
    ) -> Path:
        """`above` is the bridge's folder, or a host bridge's name."""
        folder = self.sysfs / "devices" / above / address
        self.write(folder / "vendor", f"{vendor}\n")
        self.write(folder / "class", f"{pci_class}\n")
        if device:
            self.write(folder / "device", f"{device}\n")
        self.write(folder / "numa_node", f"{numa}\n")
        (self.sysfs / "bus/pci/devices" / address).symlink_to(folder)
        if driver:
            module = self.sysfs / "bus/pci/drivers" / driver
            module.mkdir(parents=True, exist_ok=True)
            (folder / "driver").symlink_to(module)
        return folder

    def add_interface(
        self, name: str, *, device: Path | None = None, speed=None, mtu=1500, arp_type=1, state="up"
    ) -> Path:
        folder = self.sysfs / ("devices/virtual" if device is None else "devices") / "net" / name
        self.write(folder / "type", f"{arp_type}\n")
        self.write(folder / "mtu", f"{mtu}\n")
        self.write(folder / "operstate", f"{state}\n")
        if speed is not None:
            self.write(folder / "speed", f"{speed}\n")
        self.set_bytes(name, 0, 0, folder)
        if device is not None:
            (folder / "device").symlink_to(device)
            (device / "net").mkdir(exist_ok=True)
            (device / "net" / name).symlink_to(folder)
        link = self.sysfs / "class/net" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
        return folder

    def set_pid_namespace(self, number: int) -> None:
        """The machine's own has a number of its own; a container's has another."""
        link = self.procfs / "self/ns/pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(f"pid:[{number}]")

    def add_process(
        self,
        pid: int,
        *arguments: str,
        parent=1,
        name="python3",
        ticks=0,
        pages=0,
        began=1000,
        opened=(),
    ) -> None:
        """As /proc shows it; `opened` are the files that it has open."""
        folder = self.procfs / str(pid)
        row = ["S", parent, *[0] * 9, ticks, 0, *[0] * 6, began, 0, pages, *[0] * 28]
        self.write(folder / "stat", f"{pid} ({name}) {' '.join(map(str, row))}\n")
        self.write(folder / "cmdline", "".join(f"{each}\0" for each in arguments))
        (folder / "fd").mkdir(exist_ok=True)
        for number, path in enumerate(opened):
            (folder / f"fd/{number}").symlink_to(path)

    def end_process(self, pid: int) -> None:
        shutil.rmtree(self.procfs / str(pid))

    def set_counters(self, folder: Path, **counts: int) -> None:
        """Such as those of an RDMA port's `hw_counters`; no newline, as in a real capture."""
        for name, count in counts.items():
            self.write(folder / name, count)

    def set_bytes(self, name: str, tx: int, rx: int, folder: Path | None = None) -> None:
        folder = folder or self.sysfs / "class/net" / name
        for name in ("packets", "dropped", "errors"):
            for direction in ("tx", "rx"):
                if not (folder / f"statistics/{direction}_{name}").exists():
                    self.write(folder / f"statistics/{direction}_{name}", "0\n")
        self.write(folder / "statistics/tx_bytes", f"{tx}\n")
        self.write(folder / "statistics/rx_bytes", f"{rx}\n")

    def add_rdma(
        self,
        name: str,
        *,
        device: Path,
        hca_type="MT4129",
        rate="400 Gb/sec (4X NDR)",
        state="4: ACTIVE",
        link_layer="InfiniBand",
        gids=None,
        counters=True,
        port=1,
    ) -> Path:
        """`gids` maps the index to (gid, type, interface); all others are not set."""
        folder = self.sysfs / "class/infiniband" / name
        if not folder.exists():
            number = len(list((self.devfs / "infiniband").glob("uverbs*")))
            self.write(self.devfs / f"infiniband/uverbs{number}", "")
        # As in a capture of a real host: no newline at the end of these files.
        self.write(folder / "hca_type", hca_type)
        self.write(folder / "fw_ver", "28.41.1000")
        if not (folder / "device").exists():
            (folder / "device").symlink_to(device)
        at = folder / f"ports/{port}"
        for file, text in (("rate", rate), ("state", state), ("link_layer", link_layer)):
            self.write(at / file, text)
        self._add_gids(at, gids or {})
        if counters:
            self.set_rdma_words(name, 0, 0, port)
        return folder

    def _add_gids(self, port: Path, gids) -> None:
        for index in range(4):
            gid, kind, interface = gids.get(index, (":".join(["0000"] * 8), None, None))
            self.write(port / f"gids/{index}", f"{gid}\n")
            types, ndevs = port / f"gid_attrs/types/{index}", port / f"gid_attrs/ndevs/{index}"
            if kind is None:
                # The kernel fails the read of an entry that is not set; so does a folder.
                types.mkdir(parents=True)
                ndevs.mkdir(parents=True)
            else:
                self.write(types, f"{kind}\n")
                self.write(ndevs, f"{interface}\n")

    def set_rdma_words(self, name: str, tx: int, rx: int, port: int = 1) -> None:
        folder = self.sysfs / f"class/infiniband/{name}/ports/{port}/counters"
        self.write(folder / "port_xmit_data", f"{tx}\n")
        self.write(folder / "port_rcv_data", f"{rx}\n")


def roce_gids(interface: str):
    """The table of a ConnectX port with one IPv4 address: each GID once for v1 and for v2."""
    link_local, ipv4 = (
        "fe80:0000:0000:0000:0e42:a1ff:fe00:0001",
        "0000:0000:0000:0000:0000:ffff:0a00:0005",
    )
    return {
        0: (link_local, "IB/RoCE v1", interface),
        1: (link_local, "RoCE v2", interface),
        3: (ipv4, "RoCE v2", interface),
    }


def snap(machine, nvml=None, **options):
    """A snapshot of a machine, with the GPUs of a fake NVML or none."""
    options.setdefault("nccl", NcclSettings({}, machine.sysfs.parent))
    roots = {**machine.roots, "devfs": machine.devfs}
    return take_snapshot(**roots, nvml=nvml or FakeNvml(), **options)
