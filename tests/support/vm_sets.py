"""Test VMs that the tests of one process use one after another.

A set of VMs is created when a test first needs it, and is kept for the next test that needs the
same one. Tests that leave processes in their VMs, such as the agent of a VM that stays cut off, use
`workbench.testbed.vms` instead: their VMs end with them.
"""

import atexit
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psutil
from timers import LIMITS_FACTOR, within

from workbench import testbed

LEFT_S = 10.0 * LIMITS_FACTOR
"""How long processes in a VM may take to end after the test that started them."""


@dataclass
class VmSet:
    """VMs that are kept: what ends them, and the processes that belong to them."""

    machines: testbed.Machines
    stack: ExitStack
    servers: set[int]

    def processes(self):
        """Return the processes in the VMs that do not belong to them."""
        group = self.machines.ssh_config.parent.name
        pids = set()
        for name in self.machines.names:
            command = ("ip", "netns", "pids", f"{group}-{name}")
            listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            pids |= {int(word) for word in listed.split()}
        return pids - self.servers

    def mend(self):
        """Reconnect all VMs."""
        for name in self.machines.names:
            self.machines.mend(name)


_idle: dict[tuple, VmSet] = {}


@contextmanager
def vms(n, gbps=None, *, interfaces=None):
    """Provide VMs as `workbench.testbed.vms` does, and keep them for the next call.

    The links have the given rate. After the block, all VMs are connected.

    Raises
    ------
    AssertionError
        The block has left processes in the VMs. They are ended, and the VMs as well.
    """
    rates = list(gbps) if isinstance(gbps, list | tuple) else [gbps] * n
    key = (n, None if interfaces is None else tuple(interfaces))
    vm_set = _idle.pop(key, None) or _create(n, interfaces)
    with ExitStack() as unless_kept:
        unless_kept.enter_context(vm_set.stack)
        for name, rate in zip(vm_set.machines.names, rates, strict=True):
            vm_set.machines.shape(name, rate)
        yield vm_set.machines
        vm_set.mend()
        assert within(LEFT_S, lambda: not vm_set.processes()), _commands(vm_set.processes())
        if key not in _idle:
            unless_kept.pop_all()
            _idle[key] = vm_set


@atexit.register
def end_idle_vms():
    """End the VMs that are kept."""
    while _idle:
        _idle.popitem()[1].stack.close()


def _create(n, interfaces):
    stack = ExitStack()
    machines = stack.enter_context(testbed.vms(n, interfaces=interfaces))
    vm_set = VmSet(machines, stack, set())
    vm_set.servers = vm_set.processes()
    return vm_set


def _commands(pids):
    shown = []
    for pid in sorted(pids):
        try:
            shown.append(f"{pid}: {' '.join(psutil.Process(pid).cmdline())}")
        except psutil.NoSuchProcess:
            continue
    return "left in the VMs:\n" + "\n".join(shown)
