"""Run `ip` and similar commands, and check whether VMs can be created."""

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
    """Return the reason why VMs cannot be created; None if they can.

    The check creates the devices of a VM in temporary namespaces, which takes about 30 ms.
    """
    if os.geteuid() != 0:
        return "creating VMs needs root, for their network namespaces"
    missing_programs = [program for program in _PACKAGES if shutil.which(program) is None]
    if missing_programs:
        packages = sorted({_PACKAGES[program] for program in missing_programs})
        verb = "is" if len(missing_programs) == 1 else "are"
        return (
            f"{', '.join(missing_programs)} {verb} not on the PATH; "
            f"on Debian: apt-get install {' '.join(packages)}"
        )
    command = ["unshare", "--net", "--mount", "--uts", "sh", "-c", _TRIAL]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        reason = completed.stderr.strip() or f"exit status {completed.returncode}"
        return (
            f"this machine forbids namespaces, or its kernel lacks bridges, veth or tbf: {reason}"
        )
    return None


def call(*command: str, script: str | None = None) -> str:
    """Run a command with `script` as its input, and return its output.

    Raises
    ------
    VmsUnavailable
        The command cannot be run or fails.
    """
    command_text = " ".join(command)
    try:
        completed = subprocess.run(
            command, input=script or "", capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise VmsUnavailable(f"`{command_text}` cannot be run: {error}") from error
    if completed.returncode != 0:
        reason = completed.stderr.strip() or f"exit status {completed.returncode}"
        script_text = f" (standard input:\n{script.strip()})" if script else ""
        raise VmsUnavailable(f"`{command_text}` failed: {reason}{script_text}")
    return completed.stdout


def batch(*lines: str, namespace: str | None = None) -> None:
    """Run several `ip` commands in one process, which stops at the first failure."""
    namespace_arguments = ("-n", namespace) if namespace else ()
    call("ip", *namespace_arguments, "-batch", "-", script="\n".join(lines) + "\n")


def command_in_vm(namespace: str, host_name: str, command: list[str]) -> list[str]:
    """Return the command line that runs a command in a VM: its network, ``/etc`` and host name.

    Every step is an `exec`, so that a signal to the process reaches the command.
    """
    set_host_name = 'hostname "$0" && exec "$@"'
    return [
        *("ip", "netns", "exec", namespace),
        *("unshare", "--uts", "sh", "-c", set_host_name, host_name),
        *command,
    ]
