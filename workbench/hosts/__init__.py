"""Parse the VMs of a cluster, which users write as text, host files or Python objects.

- `host`: one VM, its fields and their checks
- `parsing`: reads text, host files and other objects
"""

from workbench.hosts.host import MAX_SLOTS, Host
from workbench.hosts.parsing import HostsLike, parse_hosts, text, total_slots, with_key

__all__ = ["MAX_SLOTS", "Host", "HostsLike", "parse_hosts", "text", "total_slots", "with_key"]
