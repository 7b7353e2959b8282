"""The launcher that starts agents over ssh: its command, and the causes of its failures."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

from workbench.cluster.launchers import RelayLauncher, python_failure
from workbench.errors import StartFailed
from workbench.hosts import Host

_CONNECT_S = 10
_RECONNECT_S = 2
_ALIVE_S = 1
_MAX_ALIVE_MISSES = 3
"""ssh closes a connection after 4 s without data. The kernel then connects again."""

_STATUS_NOT_FOUND = 127
_STATUS_SSH_ERROR = 255
"""Exit status of ssh if it cannot connect, or loses the connection."""

_CAUSES = (
    (
        r"exec: \S+: (not found|cannot execute|.*No such file)|exec: .*: Permission denied",
        "the ProxyCommand of its ssh config cannot be run",
        "correct ProxyCommand in the ssh config",
    ),
    (
        r"Cannot execute command-line and remote command",
        "its ssh config has a RemoteCommand",
        "remove RemoteCommand for this host, or give another ssh config",
    ),
    (
        r"Could not resolve hostname|Name or service not known",
        "its name is not known here",
        "check the name, or give its address as HostName in the ssh config",
    ),
    (
        r"HOST IDENTIFICATION HAS CHANGED|Host key verification failed|No .* host key is known",
        "its host key is unknown here, or not the one that is known",
        "connect once by hand with ssh, check the key, and let it be remembered in known_hosts",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "it refused the key",
        "let `ssh {host}` work without a password (ssh-copy-id, or IdentityFile in the config)",
    ),
    (
        r"Connection refused",
        "nothing answers on its ssh port",
        "start sshd there, or name the port (port=... in the host file, Port in the ssh config)",
    ),
    (
        r"timed out|No route to host|Network is unreachable|not responding",
        "it does not answer",
        "check that the VM is up and that this machine's network reaches it",
    ),
    (
        r"Bad owner or permissions|Can't open user config|[Bb]ad configuration option",
        "the ssh config cannot be used",
        "correct the file that is named here",
    ),
    (
        r"Connection closed|Connection reset|Broken pipe|kex_exchange",
        "it closed the connection",
        "check the log of sshd there",
    ),
)


class SshLauncher(RelayLauncher):
    """Runs the relay on each VM over a separate ssh connection.

    The parameter `config` is an ssh client configuration, which replaces the user's.
    """

    needs_hosts = True

    def command(self, host: Host, program: list[str], patience_s: float | None) -> list[str]:
        """See `RelayLauncher`.

        `parse_hosts` has checked the name of the host. The program is quoted for the login shell.
        """
        if shutil.which("ssh") is None:
            raise StartFailed(
                "there is no ssh on this machine", fix="install the package openssh-client"
            )
        wait_s = _CONNECT_S if patience_s is None else min(_RECONNECT_S, max(1, int(patience_s)))
        options = {
            "BatchMode": "yes",  # never ask for a password: no user would see the prompt
            "ConnectTimeout": wait_s,
            "ServerAliveInterval": _ALIVE_S,
            "ServerAliveCountMax": _MAX_ALIVE_MISSES,
            "ControlMaster": "no",
            "ControlPath": "none",  # a lost shared connection would affect all VMs
            "ForwardX11": "no",
            "LogLevel": "ERROR",
        }
        return [
            "ssh",
            *(["-F", str(self._config)] if self._config is not None else []),
            "-T",
            *(word for name, value in options.items() for word in ("-o", f"{name}={value}")),
            *(["-p", str(host.port)] if host.port is not None else []),
            *(["-l", host.user] if host.user is not None else []),
            *(["-i", str(key_file(host)), "-o", "IdentitiesOnly=yes"] if host.key else []),
            "--",
            host.name,
            "exec " + shlex.join(program),
        ]

    def failure(self, host: Host | None, code: int | None, output: str) -> StartFailed:
        """See `Launcher`."""
        assert host is not None
        python = host.python or sys.executable
        cause, fix = _cause(code, output, python)
        last_line = _last_line(output)
        suffix = f" ({last_line})" if last_line else ""
        fix = fix.replace("{host}", _ssh_arguments(host))
        return StartFailed(cause + suffix, vm=host.shown, fix=fix)


def _ssh_arguments(host: Host) -> str:
    """Return the arguments of ssh with which a user can connect to a host like the kernel.

    Examples
    --------
    >>> _ssh_arguments(Host("vm1", user="me", port=2222))
    '-p 2222 me@vm1'
    """
    port = [] if host.port is None else ["-p", str(host.port)]
    key = [] if host.key is None else ["-i", host.key]
    return shlex.join([*port, *key, host.label.strip("[]")])


def key_file(host: Host) -> Path:
    """Return the path of the host's key file.

    Raises
    ------
    StartFailed
        The file does not exist.
    """
    key = Path(host.key or "").expanduser()
    if not key.is_file():
        raise StartFailed(
            f"there is no key file {key} on this machine",
            vm=host.shown,
            fix="give the path of the private key that it accepts",
        )
    return key


def _cause(code: int | None, output: str, python: str) -> tuple[str, str]:
    """Return the cause of a failed connection, and what to do."""
    is_not_found = code != _STATUS_SSH_ERROR and re.search(r"not found|No such file", output)
    if python_cause := python_failure(_STATUS_NOT_FOUND if is_not_found else code, output, python):
        return python_cause
    if (code == _STATUS_SSH_ERROR or code is None) and (ssh_cause := cause_of(output)):
        return ssh_cause
    if code is None:
        return "its agent did not answer in time", "check that `ssh {host}` works and is quick"
    ended = f"its agent ended with exit status {code}"
    if _last_line(output):
        return ended, "read its output"
    return (
        ended,
        "check that commands run there and read their input: `echo hello | ssh {host} cat`",
    )


def cause_of(output: str) -> tuple[str, str] | None:
    """Return the cause of an error that ssh has printed, and what to do; None if it is unknown.

    Examples
    --------
    >>> cause_of("me@vm1: Permission denied (publickey).")[0]
    'it refused the key'
    """
    for pattern, cause, fix in _CAUSES:
        if re.search(pattern, output, re.IGNORECASE):
            return cause, fix
    return None


def _last_line(output: str) -> str:
    """Return the last line of ssh's output that is not part of a banner."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    messages = [line for line in lines if not line.startswith(("@", "*"))]
    return messages[-1] if messages else ""
