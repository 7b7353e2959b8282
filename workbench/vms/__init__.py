"""Test VMs that this machine makes itself: hosts to ssh into, joined by links of a chosen rate.

    with vms(3, gbps=1.0) as machines:
        machines.run("vm1", ["hostname"])
        subprocess.run(["ssh", "-F", machines.ssh_config, "vm2", "hostname"])

To the programs in it, a VM is a host of its own: a network namespace, a host
name, an ``/etc/hosts`` and an sshd. Files, users, cores and memory are this
machine's, so nothing boots and three of them are there in under a second.
What it takes: Linux, root, iproute2 and OpenSSH; `why_not` says what lacks.

- `machines`: the door; `needs`: what it takes
- `network`: the bridge, the links and their rates; `sshd`: keys, servers, the
  client's config; `etc`: what a VM sees in ``/etc``
- `claims`: who made what, so that what dead makers left can be taken down
- `commands`: running `ip` and its like
"""

from workbench.vms.claims import clean_up
from workbench.vms.machines import Machines, vms
from workbench.vms.needs import why_not

__all__ = ["Machines", "clean_up", "vms", "why_not"]
