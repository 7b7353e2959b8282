"""Running `ip` and its like."""

from __future__ import annotations

import subprocess

from workbench.errors import VmsUnavailable


def call(*command: str, script: str | None = None) -> str:
    """Run a command of this machine and return its output.

    Parameters
    ----------
    command
        The program and its arguments.
    script
        What it reads from its standard input; nothing by default.

    Raises
    ------
    VmsUnavailable
        It is not there, or it failed.
    """
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command, input=script or "", capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise VmsUnavailable(f"`{shown}` does not run: {error}") from error
    if done.returncode != 0:
        words = done.stderr.strip() or f"exit status {done.returncode}"
        asked = f" (asked:\n{script.strip()})" if script else ""
        raise VmsUnavailable(f"`{shown}` failed: {words}{asked}")
    return done.stdout


def batch(*lines: str, namespace: str | None = None) -> None:
    """Run several `ip` commands in one process; the first that fails ends it.

    Raises
    ------
    VmsUnavailable
        One of them failed.
    """
    inside = ("-n", namespace) if namespace else ()
    call("ip", *inside, "-batch", "-", script="\n".join(lines) + "\n")


def inside(namespace: str, host_name: str, command: list[str]) -> list[str]:
    """Return the command that runs another one in a VM: its network, ``/etc`` and host name.

    It becomes that command (every step is an `exec`), so that a signal to the
    process reaches it.
    """
    rename = 'hostname "$0" && exec "$@"'
    return [
        *("ip", "netns", "exec", namespace),
        *("unshare", "--uts", "sh", "-c", rename, host_name),
        *command,
    ]
