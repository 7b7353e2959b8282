"""What a VM sees in ``/etc``.

`ip netns exec` mounts what is in ``/etc/netns/NAMESPACE`` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.vms.network import Vm

NETNS = Path("/etc/netns")
_SHADOW = Path("/etc/shadow")


def write(vm: Vm, everyone: Sequence[Vm], own_name_on_loopback: bool) -> None:
    """Write a VM's own files."""
    folder = NETNS / vm.namespace
    folder.mkdir(parents=True)
    hosts = hosts_text(vm, everyone, own_name_on_loopback)
    (folder / "hosts").write_text(hosts, encoding="utf-8")
    unlocked = _unlocked_root()
    if unlocked is not None:
        shadow = folder / "shadow"
        shadow.touch(mode=0o600)
        shadow.write_text(unlocked, encoding="utf-8")


def hosts_text(vm: Vm, everyone: Sequence[Vm], own_name_on_loopback: bool) -> str:
    """Return a VM's ``/etc/hosts``.

    Parameters
    ----------
    vm
        Whose it is.
    everyone
        All VMs.
    own_name_on_loopback
        Whether its own name is 127.0.1.1, as Debian's installer writes it.
    """
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    for other in everyone:
        on_loopback = other == vm and own_name_on_loopback
        lines.append(f"{'127.0.1.1' if on_loopback else other.address}\t{other.name}")
    return "\n".join(lines) + "\n"


def _unlocked_root() -> str | None:
    """Return a shadow file that lets root in by key; None where the machine's does.

    An sshd without PAM turns away whoever's password is locked with an
    exclamation mark, by key too, and Ubuntu locks root's.
    """
    try:
        lines = _SHADOW.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    root = next((line.split(":") for line in lines if line.startswith("root:")), None)
    if root is None or not root[1].startswith("!"):
        return None
    return ":".join(["root", "*", *root[2:]]) + "\n"
