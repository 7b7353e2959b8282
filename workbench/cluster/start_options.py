"""The options of a cluster's start, in one table for the magic, the panel and the form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.errors import UsageError
from workbench.rank.backends import BACKENDS

PLACES = {
    "local": "This machine",
    "ssh": "VMs over ssh",
    "mpi": "MPI (mpiexec)",
    "slurm": "Slurm",
    "existing": "Engines of ipyparallel",
}
"""Names of where ranks can run, by launcher. The launchers are those of `LAUNCHERS`."""


@dataclass(frozen=True)
class StartOption:
    """An option of ``%cluster start``, and the argument of `Cluster` that it sets.

    Attributes
    ----------
    name
        The argument's name; the option has hyphens instead of underscores.
    help
        Its description in the help of the magic.
    launchers
        The launchers that accept it.
    label
        Its description in a form; empty if forms do not have it.
    example
        A value as users write it, shown in an empty field.
    values
        All valid values; empty if the values are not limited.

    Examples
    --------
    >>> StartOption("ssh_config", "ssh client configuration file").flag
    '--ssh-config'
    """

    name: str
    help: str
    launchers: tuple[str, ...] = tuple(PLACES)
    label: str = ""
    example: str = ""
    values: tuple[str, ...] = ()
    metavar: str | None = None
    is_number: bool = False

    @property
    def flag(self) -> str:
        """The option as users write it: ``-n``, ``--ssh-config``."""
        return "-n" if self.name == "n" else "--" + self.name.replace("_", "-")


_SLURM = ("slurm",)
_EXISTING = ("existing",)
_HOSTS = ("ssh", "mpi")

START_OPTIONS = (
    StartOption(
        "n", "start, resize: number of ranks; 2 by default",
        ("local", "mpi", "slurm", "existing"), "Ranks", "2", is_number=True,
    ),
    StartOption(
        "hosts", "start: VMs with ranks, vm1:2,vm2:2, or a host file",
        _HOSTS, "Hosts", "vm1:2,vm2:2",
    ),
    StartOption(
        "ssh_config", "start: ssh client configuration file", _HOSTS, "ssh config", "~/.ssh/config"
    ),
    StartOption("ssh_key", "start: private key for the hosts", _HOSTS, metavar="FILE"),
    StartOption(
        "backend", f"start: joins the ranks, {' or '.join(BACKENDS)}",
        label="Backend", values=tuple(BACKENDS), metavar="NAME",
    ),
    StartOption(
        "launcher", "start: local, ssh, mpi, slurm or existing",
        label="Where", values=tuple(PLACES), metavar="NAME",
    ),
    StartOption(
        "profile", "start: where its ipengines run", _EXISTING, "Profile", "default", metavar="NAME"
    ),
    StartOption("connection_file", "start: the same, by file", _EXISTING, metavar="FILE"),
    StartOption("mpi_args", "start: options of mpiexec", ("mpi",), metavar="TEXT"),
    StartOption("partition", "start with Slurm: as for sbatch, like these:", _SLURM, "Partition"),
    StartOption("time", "2:00:00", _SLURM, "Time limit", "2:00:00"),
    StartOption("nodes", "number of nodes", _SLURM, is_number=True),
    StartOption("account", "account", _SLURM),
    StartOption("qos", "quality of service", _SLURM),
    StartOption("constraint", "features of the nodes", _SLURM),
    StartOption("cpus_per_task", "cores for each rank", _SLURM, is_number=True),
    StartOption("gpus_per_task", "GPUs for each rank", _SLURM, is_number=True),
    StartOption("sbatch", "further arguments, in quotes", _SLURM, metavar="ARGS"),
    StartOption("queue_timeout", "longest wait for the job, 1h", _SLURM, metavar="TIME"),
    StartOption(
        "release_after", "start: stop after idling, 30m",
        label="Stop when idle for", example="30m", metavar="TIME",
    ),
    StartOption(
        "keep", "start: survive the kernel, 30m",
        ("local", "ssh", "mpi", "existing"), "Keep after the kernel", "30m", metavar="TIME",
    ),
)  # fmt: skip


def arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Cluster` from the options of a magic or a form, by name.

    Options without a value are left out, so that they have their defaults. The values are checked
    by `Cluster`.

    Raises
    ------
    UsageError
        There is no such option.

    Examples
    --------
    >>> arguments({"n": "4", "hosts": None})
    {'n': '4'}
    """
    names = {option.name for option in START_OPTIONS}
    unknown = next((name for name in options if name not in names), None)
    if unknown is not None:
        raise UsageError(
            f"{unknown}={options[unknown]!r}: not an option of a start. Write one of "
            f"{', '.join(sorted(names))}."
        )
    return {name: value for name, value in options.items() if value is not None}


def start_line(options: Mapping[str, Any]) -> str | None:
    """Return the magic with these options, in the form that `parse_line` reads.

    Return None if a value cannot be written in a line, because it has line breaks, or because it
    has both kinds of quotes.

    Examples
    --------
    >>> start_line({"n": 2, "release_after": "30m", "sbatch": "--exclusive --mem=8G"})
    '%cluster start -n 2 --sbatch "--exclusive --mem=8G" --release-after 30m'
    """
    words = ["%cluster start"]
    for option in START_OPTIONS:
        value = options.get(option.name)
        if value is not None:
            quoted = _quoted(str(value))
            if quoted is None:
                return None
            words += [option.flag, quoted]
    if options.get("record") is False:
        words.append("--no-record")
    if options.get("cold"):
        words.append("--cold")
    return " ".join(words)


def _quoted(text: str) -> str | None:
    """Return a value for a magic's line, in quotes if necessary; None if no quotes fit."""
    if text and text[0] not in "-'\"" and not any(map(str.isspace, text)):
        return text
    is_line = len(f"{text}.".splitlines()) == 1
    mark = next((mark for mark in "\"'" if is_line and mark not in text), None)
    return None if mark is None else mark + text + mark
