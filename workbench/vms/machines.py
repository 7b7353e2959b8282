"""The door: VMs for as long as a ``with`` block lasts."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from workbench.errors import UsageError, VmsUnavailable
from workbench.vms import etc, network, sshd
from workbench.vms.claims import Claim, claim, take_down
from workbench.vms.commands import inside
from workbench.vms.needs import why_not
from workbench.vms.network import KERNEL_HOST, Vm

Rates = float | Sequence[float | None] | None
_MOST = 250


@contextmanager
def vms(
    n: int,
    gbps: Rates = None,
    *,
    interfaces: Sequence[str] | None = None,
    own_name_on_loopback: bool = True,
) -> Iterator[Machines]:
    """Make VMs on this machine, and take them down at the end of the block.

    With them goes every process that was started in them, and first of all
    what makers left that did not get to their end.

    Parameters
    ----------
    n
        How many: ``vm1`` to ``vmN``.
    gbps
        Rate of each one's link in both directions, headers included, in
        Gbit/s; one for all or one for each. None for what the machine can do.
    interfaces
        What each calls its network interface; ``eth0`` by default.
    own_name_on_loopback
        Whether a VM's own name is 127.0.1.1 in its ``/etc/hosts``, as on a
        Debian machine, or its address on the network.

    Raises
    ------
    UsageError
        The numbers do not fit each other.
    VmsUnavailable
        They cannot be made here; nothing is left of those that were.
    """
    rates = _for_each(n, gbps)
    names = ["eth0"] * n if interfaces is None else list(interfaces)
    if len(names) != n:
        raise UsageError(f"{len(names)} interfaces do not name those of {n} VMs")
    if (reason := why_not()) is not None:
        raise VmsUnavailable(f"VMs cannot be made: {reason}")
    mine = claim()
    sshds: list[subprocess.Popen[bytes]] = []
    try:
        try:
            machines = Machines(mine, names)
            machines._make(rates, own_name_on_loopback, sshds)
        except OSError as error:
            raise VmsUnavailable(f"VMs cannot be made: {error}") from error
        yield machines
    finally:
        for process in sshds:
            process.kill()  # one that is on its way into its namespace is not found in there
            process.wait()
        take_down(mine.name)


class Machines:
    """VMs that run; `vms` makes them.

    Attributes
    ----------
    names : tuple[str, ...]
        Their host names.
    ssh_config : Path
        What ``ssh -F`` needs to reach them by name, from here and from each other.
    kernel_address : str
        This machine's address in their network.
    """

    def __init__(self, owner: Claim, interfaces: Sequence[str]) -> None:
        self._claim = owner
        self._vms = {
            f"vm{number}": Vm(
                name=f"vm{number}",
                address=f"{owner.subnet}.{number}",
                interface=interface,
                outer=f"{owner.name}v{number}",
                namespace=f"{owner.name}-vm{number}",
            )
            for number, interface in enumerate(interfaces, start=1)
        }
        self.names = tuple(self._vms)
        self.kernel_address = f"{owner.subnet}.{KERNEL_HOST}"
        self.ssh_config = owner.folder / "ssh_config"

    def hosts(self, slots: int | Sequence[int] = 1) -> str:
        """Return the VMs as Horovod and MPI write them: ``"vm1:1,vm2:1"``.

        Parameters
        ----------
        slots
            Ranks on each; one number for all or one for each.

        Raises
        ------
        UsageError
            There are not as many numbers as VMs.
        """
        counts = [slots] * len(self.names) if isinstance(slots, int) else list(slots)
        if len(counts) != len(self.names):
            raise UsageError(f"{len(counts)} numbers of slots do not fit {len(self.names)} VMs")
        return ",".join(f"{name}:{count}" for name, count in zip(self.names, counts, strict=True))

    def address(self, name: str) -> str:
        """Return a VM's IPv4 address.

        Raises
        ------
        UsageError
            There is no VM of that name; so for each method below.
        """
        return self._vm(name).address

    def log(self, name: str) -> Path:
        """Return the log of a VM's sshd."""
        return sshd.log_of(self._claim.folder, self._vm(name))

    def inside(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs another one in a VM, for `subprocess.Popen`."""
        vm = self._vm(name)
        return inside(vm.namespace, vm.name, list(command))

    def run(
        self,
        name: str,
        command: Sequence[str],
        *,
        check: bool = True,
        timeout_s: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a VM, not by ssh, and return its result with its output as text.

        Raises
        ------
        subprocess.CalledProcessError
            It failed, and `check` is true.
        subprocess.TimeoutExpired
            It ran longer than `timeout_s` seconds, and was killed.
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
        """Take a VM's network away, silently: packets vanish, connections stay open."""
        network.cut(self._vm(name))

    def mend(self, name: str) -> None:
        """Give a VM's network back."""
        network.mend(self._vm(name))

    def shape(self, name: str, gbps: float | None) -> None:
        """Change the rate of a VM's link, in Gbit/s; None for what the machine can do."""
        network.shape(self._vm(name), _rate(gbps))

    def _make(
        self,
        rates: Sequence[float | None],
        own_name_on_loopback: bool,
        sshds: list[subprocess.Popen[bytes]],
    ) -> None:
        """Make them, each of the sshds that were started being in the list at once."""
        owner, everyone = self._claim, list(self._vms.values())
        network.make_bridge(owner.name, self.kernel_address)
        sshd.write_keys(owner.folder, everyone)
        sshd.write_client_config(self.ssh_config, everyone)
        for vm, rate in zip(everyone, rates, strict=True):
            etc.write(vm, everyone, own_name_on_loopback)
            network.join(vm, owner.name)
            network.shape(vm, rate)
            sshds.append(sshd.start(owner.folder, vm))
        for vm, process in zip(everyone, sshds, strict=True):
            sshd.wait_until_ready(owner.folder, vm, process)
        with socket.create_server((self.kernel_address, 0)) as here:
            kernel = f"{self.kernel_address}:{here.getsockname()[1]}"
            network.check_reach(everyone[0], kernel, f"{everyone[-1].address}:{sshd.PORT}")

    def _vm(self, name: str) -> Vm:
        try:
            return self._vms[name]
        except KeyError:
            there = ", ".join(self.names)
            raise UsageError(f"there is no VM {name!r}; there are {there}") from None


def _for_each(n: int, gbps: Rates) -> list[float | None]:
    if not 1 <= n <= _MOST:
        raise UsageError(f"{n} VMs cannot be made; 1 to {_MOST} can")
    rates = list(gbps) if isinstance(gbps, Sequence) else [gbps] * n
    if len(rates) != n:
        raise UsageError(f"{len(rates)} rates do not fit {n} VMs")
    return [_rate(rate) for rate in rates]


def _rate(gbps: float | None) -> float | None:
    if gbps is not None and not gbps > 0:
        raise UsageError(f"a link of {gbps:g} Gbit/s carries nothing; `cut` takes it away")
    return gbps
