"""What making VMs takes, and whether it is here."""

from __future__ import annotations

import os
import shutil
import subprocess

_PACKAGES = {
    "bridge": "iproute2",
    "hostname": "hostname",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "tc": "iproute2",
    "unshare": "util-linux",
}
"""Each program that is used, and the Debian package that brings it."""

_REHEARSAL = """
ip link add bridge0 type bridge &&
ip link add veth0 type veth peer name veth1 &&
tc qdisc add dev veth0 root tbf rate 1gbit burst 128kb latency 1ms
"""


def why_not() -> str | None:
    """Return why VMs cannot be made here; None where they can.

    It is found out by doing it in namespaces that are gone at once, in some 30 ms.
    """
    if os.geteuid() != 0:
        return "making VMs takes root, for their network namespaces"
    missing = [program for program in _PACKAGES if shutil.which(program) is None]
    if missing:
        packages = sorted({_PACKAGES[program] for program in missing})
        verb = "is" if len(missing) == 1 else "are"
        return (
            f"{', '.join(missing)} {verb} not on the PATH; "
            f"on Debian: apt-get install {' '.join(packages)}"
        )
    command = ["unshare", "--net", "--mount", "--uts", "sh", "-c", _REHEARSAL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = done.stderr.strip() or f"exit status {done.returncode}"
        return f"this machine forbids namespaces, or its kernel lacks bridges, veth or tbf: {words}"
    return None
