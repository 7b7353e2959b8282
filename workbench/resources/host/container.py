"""Detect the kind of container that this process runs in."""

from __future__ import annotations

from pathlib import Path

from workbench.resources.files import read_text
from workbench.resources.unknown import Unknown

# Variables that a runtime sets in a container.
_VARIABLES = (
    ("KUBERNETES_SERVICE_HOST=", "kubernetes"),
    ("APPTAINER_CONTAINER=", "apptainer"),
    ("SINGULARITY_CONTAINER=", "apptainer"),
)
# Files that a runtime creates in a container's root.
_FILES = (("run/.containerenv", "podman"), (".dockerenv", "docker"))
# Parts of a runtime's cgroup paths (cgroup version 1, or a shared cgroup namespace).
_GROUPS = (
    ("kubepods", "kubernetes"),
    ("libpod", "podman"),
    ("/docker", "docker"),
    ("containerd", "containerd"),
    ("/lxc", "lxc"),
)


def find_container(procfs: Path) -> str | Unknown:
    """Return the kind of container; ``"none"`` if no file, variable or cgroup indicates one.

    Kubernetes is checked first, as it starts its containers with one of the others.
    """
    variables = _variables(procfs)
    groups = read_text(procfs / "self/cgroup")
    found = [name for text, name in _VARIABLES if any(x.startswith(text) for x in variables)]
    if isinstance(groups, str):
        found += [name for text, name in _GROUPS[:1] if text in groups]
    # The root of this process in procfs, so that tests can replace it.
    found += [name for file, name in _FILES if (procfs / "self/root" / file).exists()]
    if isinstance(groups, str):
        found += [name for text, name in _GROUPS if text in groups]
    # systemd's container interface: a variable of PID 1, which child processes may inherit.
    found += [value for x in variables if (value := x.removeprefix("container=")) != x and value]
    if not found and isinstance(groups, Unknown):
        return groups
    return found[0] if found else "none"


def _variables(procfs: Path) -> list[str]:
    text = read_text(procfs / "self/environ")
    return text.split("\0") if isinstance(text, str) else []
