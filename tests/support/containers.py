"""Containers on test VMs: an sshd of a user without root, on a port of its own, no systemd.

A user namespace makes this machine's files belong to the user, so that Python can be run.
"""

import contextlib
import subprocess
from pathlib import Path

from timers import eventually

PORT = 2222
USER = "trainer"
_KEY, _HOST_KEY = "user_key", "host_key"

# the mounts are the VM's command's alone
_START = """
set -e
cd "$1"
mount -t tmpfs tmpfs /mnt
mkdir /mnt/home
mount -o remount,ro /mnt
(cat /etc/passwd; echo "$2:x:1000:1000::/mnt/home:/bin/bash") > passwd
(cat /etc/group; echo "$2:x:1000:") > group
mount --bind passwd /etc/passwd
mount --bind group /etc/group
exec unshare --user --map-user=1000 --map-group=1000 "$(command -v sshd)" -D -e -f sshd_config
"""
_CONFIG = """\
ListenAddress {address}:{port}
HostKey {host_key}
AuthorizedKeysFile {key}.pub
StrictModes no
UsePAM no
PidFile none
SetEnv SHLVL=1
"""


@contextlib.contextmanager
def containers(machines, places, folder):
    """Start a container at each (VM, port) of `places`; yield the key and the ssh config."""
    for key in (_KEY, _HOST_KEY):
        command = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
        subprocess.run(command, check=True)
    host_key = (folder / f"{_HOST_KEY}.pub").read_text()
    known = folder / "known_hosts"
    known.write_text("".join(f"[{machines.address(vm)}]:{port} {host_key}" for vm, port in places))
    config = folder / "ssh_config"
    config.write_text(f"UserKnownHostsFile {known}\nGlobalKnownHostsFile /dev/null\n")
    with contextlib.ExitStack() as stack:
        for vm, port in places:
            process = _start(machines, vm, port, folder)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield folder / _KEY, config


def _start(machines, vm, port, folder):
    own = folder / f"{vm}-{port}"
    own.mkdir()
    text = _CONFIG.format(
        address=machines.address(vm), port=port, host_key=folder / _HOST_KEY, key=folder / _KEY
    )
    (own / "sshd_config").write_text(text)
    log = Path(own / "log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            machines.inside(vm, ["sh", "-c", _START, "sh", str(own), USER]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    assert eventually(lambda: "listening on" in log.read_text() or process.poll() is not None)
    assert process.poll() is None, log.read_text()
    return process
