"""Rules about what is set up wrong on a VM, or differs between VMs: why it costs, and its cure.

- `finding`: what a rule reports, and its layout on a terminal;
- `rule`: what a rule is, the decorator that makes one, and the comparison of VMs;
- `facts`: what several rules read from a snapshot, and the names of GPUs and ports;
- `host`, `gpus`, `vgpus`, `nvlinks`, `pcie`, `topology_file`, `rdma`, `pvrdma`, `nccl_settings`:
  the rules about one VM, by subject;
- `mismatches`, `rdma_mismatches`: the rules about several VMs;
- `rules`: the tables of all rules, and `diagnose`, which runs them;
- `text`: reports for a terminal.
"""

from __future__ import annotations

from workbench.doctor.finding import Finding, Severity
from workbench.doctor.rules import diagnose, diagnose_all, diagnose_limits
from workbench.doctor.text import describe, describe_all

__all__ = [
    "Finding",
    "Severity",
    "describe",
    "describe_all",
    "diagnose",
    "diagnose_all",
    "diagnose_limits",
]
