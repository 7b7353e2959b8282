"""Test VMs on one Linux system: network namespaces with sshd and links of a chosen rate.

    with vms(3, gbps=1.0) as machines:
        machines.run("vm1", ["hostname"])
        subprocess.run(["ssh", "-F", machines.ssh_config, "vm2", "hostname"])

Each VM has its own network namespace, host name, ``/etc/hosts`` and sshd, so programs in the VM
see a separate host. The VM shares files, users, cores and memory with this machine. So nothing
boots, and three VMs start in less than a second. Requirements are Linux, root, iproute2 and
OpenSSH; `why_not` returns the missing requirement.

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
