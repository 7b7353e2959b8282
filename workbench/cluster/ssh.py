"""Reaching a VM by ssh: the command, and what its failure means."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

from workbench.cluster.host import Host
from workbench.errors import StartFailed

_CONNECT_S = 10
_ALIVE_S = 2
_ALIVE_MISSES = 3
"""A VM that does not answer for these 6 s is lost."""


def command(host: Host, program: Iterable[str], config: Path | None) -> list[str]:
    """Return the command that runs `program` on `host`; nothing in it can be taken for another.

    Parameters
    ----------
    host
        Its name has been checked by `parse_hosts`.
    program
        Program and arguments, quoted here for the login shell there.
    config
        An ssh client configuration to use instead of the user's own.

    Raises
    ------
    StartFailed
        There is no ssh here.
    """
    if shutil.which("ssh") is None:
        raise StartFailed(
            "there is no ssh on this machine", cure="install the package openssh-client"
        )
    options = {
        "BatchMode": "yes",  # a question would never be answered
        "ConnectTimeout": _CONNECT_S,
        "ServerAliveInterval": _ALIVE_S,
        "ServerAliveCountMax": _ALIVE_MISSES,
        "ControlMaster": "no",
        "ControlPath": "none",  # one connection each: a shared one would be lost by all
        "ForwardX11": "no",
        "LogLevel": "ERROR",
    }
    return [
        "ssh",
        *(["-F", str(config)] if config is not None else []),
        "-T",
        *(part for name, value in options.items() for part in ("-o", f"{name}={value}")),
        *(["-p", str(host.port)] if host.port is not None else []),
        *(["-l", host.user] if host.user is not None else []),
        "--",
        host.name,
        "exec " + shlex.join(program),
    ]


_CAUSES = (
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
        "mend the file that is named here",
    ),
    (
        r"Connection closed|Connection reset|Broken pipe|kex_exchange",
        "it closed the connection",
        "look into the log of sshd there",
    ),
)


def failure(host: Host, code: int | None, said: str, python: str) -> StartFailed:
    """Return why the agent of a VM ended before it greeted: cause, what was said, and cure.

    Parameters
    ----------
    code
        Exit status of ssh (255 is its own failure); None where it still runs.
    said
        What came on its standard error.
    python
        The interpreter that was asked for.
    """
    cause, cure = _cause(code, said, python)
    last = _last_line(said)
    told = f" ({last})" if last else ""
    return StartFailed(cause + told, vm=host.name, cure=cure.format(host=host.name, python=python))


def _cause(code: int | None, said: str, python: str) -> tuple[str, str]:
    missing = re.search(r"No module named '?([\w.]+)", said)
    if missing and missing[1].split(".")[0] == "workbench":
        return (
            f"gradient-workbench is not installed for {python} there",
            "install it there in the same version: {python} -m pip install gradient-workbench",
        )
    if missing:
        return f"{python} lacks {missing[1]} there", "install gradient-workbench there anew"
    if code in {126, 127} or re.search(r"not found|No such file", said):
        return (
            f"there is no such Python: {python}",
            "name the one there that has gradient-workbench (python=... for the host)",
        )
    if code == 255 or code is None:
        for pattern, cause, cure in _CAUSES:
            if re.search(pattern, said, re.IGNORECASE):
                return cause, cure
    if code is None:
        return "its agent did not greet in time", "check that `ssh {host}` works and is quick"
    return f"its agent ended with exit status {code}", "see what it said"


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("@", "*"))]
    return telling[-1] if telling else ""
