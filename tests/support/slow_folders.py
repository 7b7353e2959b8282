"""What decides to which level a test belongs, besides its own markers."""

SLOW_FOLDERS = (
    *("agent", "browser", "cluster", "docs", "fabric", "faults", "horovod_build", "magics"),
    *("notebooks", "properties", "rank", "security", "server", "testbed"),
)
"""Folders most of whose tests start ranks, VMs, kernels, servers or builds, or take long."""
