"""The sshd of each VM, and the client configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from workbench.errors import VmsUnavailable
from workbench.testbed.commands import call, command_in_vm
from workbench.testbed.network import Vm

PORT = 22
_PRIVILEGE_SEPARATION = Path("/run/sshd")
_START_S = 10.0
_POLL_S = 0.01


def write_keys(folder: Path, vms: Sequence[Vm]) -> None:
    """Write the user's key, each VM's host key, and the clients' known_hosts file."""
    user = _make_key(folder / "user_key")
    (folder / "authorized_keys").write_text(user, encoding="utf-8")
    known_hosts = []
    for vm in vms:
        (folder / vm.name).mkdir()
        known_hosts.append(f"{vm.name},{vm.address} {_make_key(folder / vm.name / 'host_key')}")
    (folder / "known_hosts").write_text("".join(known_hosts), encoding="utf-8")


def write_client_config(path: Path, vms: Sequence[Vm]) -> None:
    """Write a configuration for ``ssh -F``; nothing in ``~/.ssh`` is used."""
    text = "".join(_client_section(path.parent, vm) for vm in vms)
    path.write_text(text, encoding="utf-8")


def start(folder: Path, vm: Vm) -> subprocess.Popen[bytes]:
    """Start a VM's sshd; `wait_until_ready` waits until it listens."""
    program = shutil.which("sshd")
    if program is None:
        raise VmsUnavailable(
            "sshd is not on the PATH. Install it: `apt-get install openssh-server`."
        )
    # Debian's service creates this folder, and sshd does not start without it.
    _PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    config = folder / vm.name / "sshd_config"
    config.write_text(_server_config(folder, vm), encoding="utf-8")
    # sshd executes itself again for each connection, so it needs its absolute path.
    command = [program, "-D", "-f", str(config), "-E", str(log_of(folder, vm))]
    with log_of(folder, vm).open("ab") as log:
        return subprocess.Popen(
            command_in_vm(vm.namespace, vm.name, command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def wait_until_ready(folder: Path, vm: Vm, process: subprocess.Popen[bytes]) -> None:
    """Wait until a VM's sshd listens.

    The log is read, because newer versions of sshd penalize clients that only connect and
    disconnect.
    """
    log = log_of(folder, vm)
    deadline = time.monotonic() + _START_S
    while "Server listening on" not in (text := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            state = "ended during startup" if process.poll() is not None else "does not listen"
            raise VmsUnavailable(f"the sshd of {vm.name} {state}; its log:\n{text or '(empty)'}")
        time.sleep(_POLL_S)


def log_of(folder: Path, vm: Vm) -> Path:
    """Return the log file of a VM's sshd."""
    return folder / vm.name / "sshd.log"


def _make_key(path: Path) -> str:
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path))
    return path.with_suffix(".pub").read_text(encoding="utf-8")


def _server_config(folder: Path, vm: Vm) -> str:
    # A test run recognizes the processes that it has started by this variable.
    marks = os.environ.get("TEST_PROCESS_MARKS", "")
    return f"""\
ListenAddress {vm.address}:{PORT}
HostKey {folder / vm.name / "host_key"}
AuthorizedKeysFile {folder / "authorized_keys"}
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PidFile none
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
LogLevel VERBOSE
# At level 1 bash runs no ~/.bashrc, as it otherwise does for sshd. The home folder is this
# machine's: what a killed shell leaves there, as the lock of pyenv, delays every later shell.
SetEnv SHLVL=1 TEST_PROCESS_MARKS="{marks}"
AcceptEnv HOROVOD_*
# A launcher may open many connections at a time.
MaxStartups 200
MaxSessions 200
"""


def _client_section(folder: Path, vm: Vm) -> str:
    return f"""\
Host {vm.name}
    HostName {vm.address}
    Port {PORT}
    User root
    IdentityFile {folder / "user_key"}
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {folder / "known_hosts"}
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    UpdateHostKeys no
    SendEnv HOROVOD_*
    BatchMode yes
"""
