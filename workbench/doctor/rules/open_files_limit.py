"""Few open files allowed, for DataLoader workers that share tensors."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot

# What a login of the usual distributions gets.
_DEFAULT = 1024


def open_files_limit(snapshot: Snapshot) -> Iterator[Finding]:
    """Find a limit on open files below the usual one, or the usual one where there are GPUs."""
    limit = snapshot.host.open_files
    if not isinstance(limit, int) or limit > _DEFAULT:
        return
    if limit == _DEFAULT and not snapshot.gpus:
        return
    yield Finding(
        rule="open_files_limit",
        severity="info" if limit == _DEFAULT else "warning",
        subject="this VM",
        evidence=f"a process may have {limit} files open at once",
        why="DataLoader workers hand tensors over as file descriptors and keep many of them open: "
        "with many workers and tensors they end in `Too many open files`.",
        cure="`ulimit -n 65536` before JupyterLab and the ranks start, or "
        "`* - nofile 65536` in /etc/security/limits.conf; `--ulimit nofile=65536` for a container; "
        "`LimitNOFILE=65536` for a systemd service. Where it cannot be raised: "
        '`torch.multiprocessing.set_sharing_strategy("file_system")`.',
        source="PyTorch documentation, torch.multiprocessing, Sharing strategies",
    )
