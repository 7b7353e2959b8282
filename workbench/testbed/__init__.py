"""Test VMs on this machine: network namespaces with sshd, connected by links of a chosen rate.

    with vms(3, gbps=1.0) as machines:
        machines.run("vm1", ["hostname"])
        subprocess.run(["ssh", "-F", machines.ssh_config, "vm2", "hostname"])

For programs in it, a VM is a host: it has its own network namespace, host name, ``/etc/hosts``
and sshd. It shares files, users, cores and memory with this machine, so nothing boots, and three
VMs start in less than a second. Requirements are Linux, root, iproute2 and OpenSSH;
`why_not` returns what is missing.

- `machines`: creating VMs
- `network`: the bridge, the links and their rates, and the files in a VM's ``/etc``; `sshd`:
  keys, servers, and the client's configuration
- `leases`: which process has created which VMs, so that stale ones can be removed
- `commands`: running `ip` and similar commands, and whether VMs can be created here
"""

from workbench.testbed.commands import why_not
from workbench.testbed.leases import clean_up
from workbench.testbed.machines import Machines, vms

__all__ = ["Machines", "clean_up", "vms", "why_not"]
