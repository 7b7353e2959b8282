"""Which kind of container this process runs in."""

from __future__ import annotations

from pathlib import Path

from workbench.resources.files import read_text
from workbench.resources.unknown import Unknown

# What a runtime sets in the environment of a container's processes.
_VARIABLES = (
    ("KUBERNETES_SERVICE_HOST=", "kubernetes"),
    ("APPTAINER_CONTAINER=", "apptainer"),
    ("SINGULARITY_CONTAINER=", "apptainer"),
)
# Files that a runtime puts into a container's root.
_FILES = (("run/.containerenv", "podman"), (".dockerenv", "docker"))
# Parts of a cgroup's path that a runtime makes (cgroup version 1, or a shared cgroup namespace).
_GROUPS = (
    ("kubepods", "kubernetes"),
    ("libpod", "podman"),
    ("/docker", "docker"),
    ("containerd", "containerd"),
    ("/lxc", "lxc"),
)


def find_container(procfs: Path) -> str | Unknown:
    """Name the container's kind; ``"none"`` where no file, variable or cgroup tells of one.

    Kubernetes comes first: it starts its containers with one of the others.
    """
    variables = _variables(procfs)
    groups = read_text(procfs / "self/cgroup")
    found = [name for text, name in _VARIABLES if any(x.startswith(text) for x in variables)]
    if isinstance(groups, str):
        found += [name for text, name in _GROUPS[:1] if text in groups]
    # This process's root by way of /proc, so that tests can set it.
    found += [name for file, name in _FILES if (procfs / "self/root" / file).exists()]
    if isinstance(groups, str):
        found += [name for text, name in _GROUPS if text in groups]
    # systemd's container interface: PID 1 is told so, and it may hand it on.
    found += [value for x in variables if (value := x.removeprefix("container=")) != x and value]
    if not found and isinstance(groups, Unknown):
        return groups
    return found[0] if found else "none"


def _variables(procfs: Path) -> list[str]:
    text = read_text(procfs / "self/environ")
    return text.split("\0") if isinstance(text, str) else []
