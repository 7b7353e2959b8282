"""Create VMs that exist for the duration of a ``with`` block."""

from __future__ import annotations

import logging
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from workbench.errors import UsageError, VmsUnavailable
from workbench.testbed import network, sshd
from workbench.testbed.commands import command_in_vm, why_not
from workbench.testbed.leases import Lease, acquire, remove
from workbench.testbed.network import KERNEL_HOST, Vm

_log = logging.getLogger(__name__)

Rates = float | Sequence[float | None] | None
_MAX_VMS = 250


@contextmanager
def vms(
    n: int,
    gbps: Rates = None,
    *,
    interfaces: Sequence[str] | None = None,
    own_name_on_loopback: bool = True,
) -> Iterator[Machines]:
    """Create VMs, and remove them at the end of the ``with`` block.

    The processes in the VMs are terminated as well. Stale VMs are removed first.

    Parameters
    ----------
    n
        Number of VMs, which are named ``vm1`` to ``vmN``.
    gbps
        Rate of each link in Gbit/s, including headers: a number for all VMs or a list with one
        number per VM. None means no limit.
    interfaces
        Name of each VM's network interface; ``eth0`` by default.
    own_name_on_loopback
        Whether ``/etc/hosts`` maps a VM's own name to 127.0.1.1, as on a
        Debian machine, rather than to its network address.

    Raises
    ------
    UsageError
        The arguments contradict each other.
    VmsUnavailable
        VMs cannot be created here; VMs that were already created were removed.
    """
    rates = _rates_of_vms(n, gbps)
    interface_names = ["eth0"] * n if interfaces is None else list(interfaces)
    if len(interface_names) != n:
        raise UsageError(
            f"interfaces={interface_names}: {len(interface_names)} names for {n} VMs. "
            "Give one per VM."
        )
    if (reason := why_not()) is not None:
        raise VmsUnavailable(f"cannot create VMs: {reason}")
    lease = acquire()
    sshds: list[subprocess.Popen[bytes]] = []
    try:
        try:
            machines = Machines(lease, interface_names)
            machines._create(rates, own_name_on_loopback, sshds)
        except OSError as error:
            raise VmsUnavailable(f"cannot create VMs: {error}") from error
        yield machines
    finally:
        for process in sshds:
            process.kill()  # `remove` misses a process that has not entered its namespace yet
            process.wait()
        remove(lease.name)


class Machines:
    """Running VMs, created by `vms`.

    Attributes
    ----------
    names : tuple[str, ...]
        Host names.
    ssh_config : Path
        Configuration for ``ssh -F`` to reach them by name, from here and from each other.
    kernel_address : str
        Address, in the VMs' network, of the notebook kernel, which runs outside them.
    """

    def __init__(self, lease: Lease, interfaces: Sequence[str]) -> None:
        self._lease = lease
        self._vms = {
            f"vm{number}": Vm(
                name=f"vm{number}",
                address=f"{lease.subnet}.{number}",
                interface=interface,
                bridge_port=f"{lease.name}v{number}",
                namespace=f"{lease.name}-vm{number}",
            )
            for number, interface in enumerate(interfaces, start=1)
        }
        self.names = tuple(self._vms)
        self.kernel_address = f"{lease.subnet}.{KERNEL_HOST}"
        self.ssh_config = lease.folder / "ssh_config"

    def hosts(self, slots: int | Sequence[int] = 1) -> str:
        """Return the VMs in the format of Horovod and MPI: ``"vm1:1,vm2:1"``.

        Parameters
        ----------
        slots
            Ranks per VM: a number for all VMs, or a list with one number per VM.

        Raises
        ------
        UsageError
            The number of slots differs from the number of VMs.
        """
        counts = list(slots) if isinstance(slots, Iterable) else [slots] * len(self.names)
        if len(counts) != len(self.names):
            raise UsageError(
                f"slots={slots}: {len(counts)} numbers for {len(self.names)} VMs. Give one per VM."
            )
        return ",".join(f"{name}:{count}" for name, count in zip(self.names, counts, strict=True))

    def address(self, name: str) -> str:
        """Return a VM's IPv4 address.

        Raises
        ------
        UsageError
            There is no VM of that name. The methods below raise it as well.
        """
        return self._vm(name).address

    def log(self, name: str) -> Path:
        """Return the log of a VM's sshd."""
        return sshd.log_of(self._lease.folder, self._vm(name))

    def inside(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command in a VM, for `subprocess.Popen`."""
        vm = self._vm(name)
        return command_in_vm(vm.namespace, vm.name, list(command))

    def run(
        self,
        name: str,
        command: Sequence[str],
        *,
        check: bool = True,
        timeout_s: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a VM without ssh, and return its result with output as text.

        Raises
        ------
        subprocess.CalledProcessError
            The command failed, and `check` is true.
        subprocess.TimeoutExpired
            The command exceeded `timeout_s` seconds and was killed.
        """
        return subprocess.run(
            self.inside(name, command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
            timeout=timeout_s,
        )

    def cut(self, name: str) -> None:
        """Disconnect a VM's network silently: packets are dropped, connections stay open."""
        network.cut(self._vm(name))

    def mend(self, name: str) -> None:
        """Reconnect a VM's network."""
        network.mend(self._vm(name))

    def shape(self, name: str, gbps: float | None) -> None:
        """Change the rate of a VM's link, in Gbit/s; None means unlimited."""
        network.shape(self._vm(name), _rate(gbps))

    def _create(
        self,
        rates: Sequence[float | None],
        own_name_on_loopback: bool,
        sshds: list[subprocess.Popen[bytes]],
    ) -> None:
        """Create the VMs, and add each started sshd to `sshds` immediately."""
        started_at = time.monotonic()
        lease = self._lease
        all_vms = list(self._vms.values())
        network.make_bridge(lease.name, self.kernel_address)
        sshd.write_keys(lease.folder, all_vms)
        sshd.write_client_config(self.ssh_config, all_vms)
        for vm, rate in zip(all_vms, rates, strict=True):
            network.write_etc(vm, all_vms, own_name_on_loopback)
            network.join(vm, lease.name)
            network.shape(vm, rate)
            sshds.append(sshd.start(lease.folder, vm))
        for vm, process in zip(all_vms, sshds, strict=True):
            sshd.wait_until_ready(lease.folder, vm, process)
        with socket.create_server((self.kernel_address, 0)) as server:
            kernel = f"{self.kernel_address}:{server.getsockname()[1]}"
            network.check_connections(all_vms[0], kernel, f"{all_vms[-1].address}:{sshd.PORT}")
        _log.info("created %d VMs in %.1f s", len(all_vms), time.monotonic() - started_at)

    def _vm(self, name: str) -> Vm:
        try:
            return self._vms[name]
        except KeyError:
            names = ", ".join(self.names)
            raise UsageError(f"{name!r}: no such VM. Use one of {names}.") from None


def _rates_of_vms(n: int, gbps: Rates) -> list[float | None]:
    """Return the rate of each VM's link in Gbit/s; None means no limit."""
    if not 1 <= n <= _MAX_VMS:
        raise UsageError(f"n={n}: not a possible number of VMs. Use 1 to {_MAX_VMS}.")
    rates = list(gbps) if isinstance(gbps, Sequence) else [gbps] * n
    if len(rates) != n:
        raise UsageError(f"gbps={gbps}: {len(rates)} rates for {n} VMs. Give one per VM.")
    return [_rate(rate) for rate in rates]


def _rate(gbps: float | None) -> float | None:
    if gbps is not None and not gbps > 0:
        raise UsageError(
            f"gbps={gbps:g}: a link needs a positive rate. Use `cut` to disconnect a VM."
        )
    return gbps
