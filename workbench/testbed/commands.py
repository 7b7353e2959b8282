"""Run `ip` and similar commands, and check that this machine can."""

from __future__ import annotations

import os
import shutil
import subprocess

from workbench.errors import VmsUnavailable

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
"""Each required program, and the Debian package that contains it."""

_TRIAL = """
ip link add bridge0 type bridge &&
ip link add veth0 type veth peer name veth1 &&
tc qdisc add dev veth0 root tbf rate 1gbit burst 128kb latency 1ms
"""


def why_not() -> str | None:
    """Return why VMs cannot be created here; None if they can.

    This creates the same devices in temporary namespaces, which takes about 30 ms.
    """
    if os.geteuid() != 0:
        return "creating VMs needs root, for their network namespaces"
    missing = [program for program in _PACKAGES if shutil.which(program) is None]
    if missing:
        packages = sorted({_PACKAGES[program] for program in missing})
        verb = "is" if len(missing) == 1 else "are"
        return (
            f"{', '.join(missing)} {verb} not on the PATH; "
            f"on Debian: apt-get install {' '.join(packages)}"
        )
    command = ["unshare", "--net", "--mount", "--uts", "sh", "-c", _TRIAL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = done.stderr.strip() or f"exit status {done.returncode}"
        return f"this machine forbids namespaces, or its kernel lacks bridges, veth or tbf: {words}"
    return None


def call(*command: str, script: str | None = None) -> str:
    """Run a command with `script` as its input, and return its output.

    Raise `VmsUnavailable` if it cannot be run or fails, as all functions of this package do.
    """
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command, input=script or "", capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise VmsUnavailable(f"`{shown}` cannot be run: {error}") from error
    if done.returncode != 0:
        words = done.stderr.strip() or f"exit status {done.returncode}"
        given = f" (standard input:\n{script.strip()})" if script else ""
        raise VmsUnavailable(f"`{shown}` failed: {words}{given}")
    return done.stdout


def batch(*lines: str, namespace: str | None = None) -> None:
    """Run several `ip` commands in one process, which stops at the first failure."""
    inside = ("-n", namespace) if namespace else ()
    call("ip", *inside, "-batch", "-", script="\n".join(lines) + "\n")


def command_in_vm(namespace: str, host_name: str, command: list[str]) -> list[str]:
    """Return the command line that runs a command in a VM: its network, ``/etc`` and host name.

    Every step is an `exec`, so that a signal to the process reaches the command.
    """
    rename = 'hostname "$0" && exec "$@"'
    return [
        *("ip", "netns", "exec", namespace),
        *("unshare", "--uts", "sh", "-c", rename, host_name),
        *command,
    ]
