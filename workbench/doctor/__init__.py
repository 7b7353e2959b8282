"""Rules that find wrong settings of a VM and differences between VMs, with their cost and fix.

- `finding`: the result of a rule, and its layout on a terminal;
- `rule`: the class of rules, the decorator `@rule`, and the comparison of VMs;
- `facts`: values that several rules read from a snapshot, and the names of GPUs and ports;
- `host`, `gpus`, `vgpus`, `nvlinks`, `pcie`, `topology_file`, `rdma`, `pvrdma`, `nccl_settings`:
  the rules about one VM, by subject;
- `mismatches`, `rdma_mismatches`: the rules about several VMs;
- `rules`: the tables of all rules, and `diagnose`, which runs them;
- `text`: reports for a terminal.

To add a rule, decorate its check with `@rule`, and add it to a table of `rules`: `RULES` (the
snapshot of one VM), `LIVE` (a live sample) or `MISMATCHES` in `mismatches` (several VMs).
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
