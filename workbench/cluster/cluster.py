"""A cluster: ipyparallel engines on this machine or on VMs, as the ranks of a process group."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from workbench.cluster import changes, kept, recovery
from workbench.cluster.cell_queue import CellQueue
from workbench.cluster.measuring import Measurements
from workbench.cluster.options import Options, checked_n
from workbench.cluster.state import ClusterState
from workbench.cluster.threads import LatestTask
from workbench.errors import ClusterError, StartFailed, UsageError
from workbench.hosts import HostsLike
from workbench.rank.backends import DEFAULT
from workbench.ranks import RankInfo, Ranks
from workbench.timings.runs import checked_path

if TYPE_CHECKING:
    from workbench.cluster.launchers.preflight import Preflight
    from workbench.fabric import FittedFabric
    from workbench.timings import Timings

_log = logging.getLogger(__name__)

_clusters: WeakSet[Cluster] = WeakSet()
_clusters_lock = threading.Lock()
"""Protects `_clusters`: a set cannot be iterated while another thread changes it."""


def clusters_of_this_process() -> list[Cluster]:
    """Return all clusters that this process has created and still references, in any state."""
    with _clusters_lock:
        return list(_clusters)


class Cluster(Measurements):
    """A group of ranks that run cells together.

    Use it as a context manager, or call `start` and `stop`.

    Parameters
    ----------
    n
        Number of ranks on this machine; not together with `hosts`.
    hosts
        VMs and the number of ranks on each, reached over ssh: ``"vm1:2,vm2:2"``, a host
        file, or an iterable; see `hosts.parse_hosts`.
    ssh_config
        An ssh client configuration instead of the user's.
    ssh_key
        A file with the private key for all hosts that do not name one.
    launcher
        How ranks are started: ``"local"``, ``"ssh"`` (the default with `hosts`), ``"mpi"`` (Open
        MPI's mpiexec), ``"slurm"``, or ``"existing"`` (see `from_profile`). ``"slurm"`` uses the
        allocation of this process (``SLURM_JOB_ID``), by default with all tasks of its step.
        Outside of an allocation, or if `job` is given, it requests a new allocation.
    mpi_args
        Further arguments of mpiexec, as text, such as ``"--bind-to core"``.
    backend
        The library that joins the ranks in a process group: ``"horovod"`` (the default), or
        ``"ddp"``, which is torch.distributed with Gloo on CPUs and NCCL on GPUs.
    start_timeout_s
        The start fails if not all ranks are ready after this many seconds; the time in
        Slurm's queue does not count.
    hang_after_s
        A collective that waits longer (in seconds) is explained in the cell's output;
        None for never.
    release_after
        The cluster stops after this time without a cell (``"30m"``, or seconds); None for never.
    keep
        How long (``"30m"``, or seconds) it outlives its kernel, for `attach`; None for not at all.
    runs
        The folder for the timings of its runs; the default is `timings.runs.runs_folder`.
    record
        Whether iterations and collectives are recorded from the start; see `recording`.
    cold
        Whether ranks on this machine start in new processes only, instead of forks of the warm
        process that the first start in a kernel leaves.
    **job
        A new allocation of Slurm: `partition`, `time`, `nodes`, `account`, `qos`,
        `constraint`, `cpus_per_task` and `gpus_per_task` as options of sbatch; `sbatch`,
        further arguments in one text; `queue_timeout`, how long to wait in the queue
        (``"10m"``, or seconds), by default until it starts. Or the cluster of ipyparallel that has
        the engines: `profile` or `connection_file`.

    Attributes
    ----------
    options
        The arguments, checked.
    name
        A short name that is shown to users.
    fabric
        The fabric's latency and bandwidth as `calibrate` has measured them, or None.

    Examples
    --------
    >>> cluster = Cluster(2)
    >>> cluster.state, cluster.n
    ('stopped', 2)

    Start it, train on it, and stop it:

    >>> with Cluster(2) as cluster:  # doctest: +SKIP
    ...     cluster.run("train(model)")
    """

    def __init__(
        self,
        n: int | None = None,
        *,
        hosts: HostsLike | None = None,
        ssh_config: str | os.PathLike[str] | None = None,
        ssh_key: str | os.PathLike[str] | None = None,
        launcher: str | None = None,
        mpi_args: str | Sequence[str] | None = None,
        backend: str = DEFAULT,
        start_timeout_s: float = 60.0,
        hang_after_s: float | None = 10.0,
        release_after: str | float | None = None,
        keep: str | float | None = None,
        runs: str | os.PathLike[str] | None = None,
        record: bool = True,
        cold: bool = False,
        **job: Any,
    ) -> None:
        options = Options.checked(
            n,
            hosts,
            ssh_config,
            ssh_key,
            launcher,
            keep,
            backend,
            job,
            start_timeout_s=start_timeout_s,
            hang_after_s=hang_after_s,
            release_after=release_after,
            runs=None if runs is None else checked_path(runs, "runs"),
            record=record,
            cold=cold,
            mpi_args=mpi_args,
        )
        self._set_up(options, f"{options.launcher}-{secrets.token_hex(2)}")

    @classmethod
    def from_profile(
        cls, profile: str = "default", n: int | None = None, **options: Any
    ) -> Cluster:
        """Return a cluster whose ranks run where engines of ipyparallel run.

        `start` waits up to `start_timeout_s` until n engines are registered (the first engine if n
        is None), and until they have no other work. Each rank gets the cores, GPUs and environment
        variables of an engine, in a process of its own. So it can be replaced, and `stop` leaves
        engines and controller as they were. A VM is lost when the last of its engines has ended.

        Parameters
        ----------
        profile
            The profile of IPython with which ``ipcluster start --profile`` was called.
        n
            The number of ranks; by default one for each engine.
        **options
            As for `Cluster`.
        """
        return cls(n, launcher="existing", profile=profile, **options)

    @classmethod
    def from_file(
        cls, file: str | os.PathLike[str], n: int | None = None, **options: Any
    ) -> Cluster:
        """Return a cluster as `from_profile` does, for the controller of a connection file.

        `file` is the controller's ``ipcontroller-client.json``.
        """
        return cls(n, launcher="existing", connection_file=str(file), **options)

    def _set_up(self, options: Options, name: str, first_cell: int = 1) -> None:
        self.options = options
        self.name = name
        self.fabric: FittedFabric | None = None
        self._state = ClusterState(name, options)
        with _clusters_lock:
            _clusters.add(self)
        self._cells = CellQueue(self._state, first_cell)
        weak_self = ref(self)
        self._conclusions = LatestTask(lambda: Cluster.after_cell(weak_self()))

    @property
    def state(self) -> str:
        """Return the state of the cluster.

        It is ``"stopped"``, ``"starting"``, ``"ready"``, ``"running"``, ``"stopping"`` or
        ``"failed"``. In ``"failed"``, no cell can run until the ranks are restarted or resized.
        """
        return self._state.state_now()[0]

    @property
    def message(self) -> str:
        """One line that explains the state, or says that recording is off, or an empty string."""
        names = ", ".join(agent.name for agent in self.agents if agent.reconnecting)
        state, message = self._state.state_now()
        if message or names:
            return message or f"reconnecting to {names}"
        up = state in {"ready", "running"}
        return self.timings.unrecorded if up and not self.recording else ""

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, from any thread, after every change of the state.

        Returns
        -------
        callable
            Ends the subscription.
        """
        listeners = self._state.listeners
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    @property
    def preflight(self) -> Preflight | None:
        """The findings about the VMs before their ranks were started; None on this machine."""
        return self._state.processes.agents.preflight

    @property
    def description(self) -> str:
        """A description of how the cluster runs, with a line for each choice.

        The lines name what connects Horovod's ranks (Gloo or MPI), and Slurm's job, partition,
        nodes and remaining time.
        """
        controller = self._state.processes.engines.backend.controller
        lines = [f"{controller} connects Horovod's ranks."] if controller else []
        lines.append(self._state.processes.agents.launcher.describe() if self.agents else "")
        return "\n".join(filter(None, lines))

    @property
    def timings(self) -> Timings:
        """The timings of the ranks' iterations; kept after `stop`, until the next `start`."""
        return self._state.timings

    @property
    def ranks(self) -> list[RankInfo]:
        """The ranks in order, with their current states; empty before the start."""
        engines = self._state.processes.engines
        states = dict.fromkeys(self._state.lost(), "dead")
        states |= dict.fromkeys(engines.members.given_up, "running")
        states |= {rank: states.get(rank, "running") for rank in self._cells.busy}
        return [replace(r, state=states.get(r.rank, r.state)) for r in engines.ranks]

    # start, stop and change

    def start(self) -> Cluster:
        """Start the ranks, and return when a collective over all of them has succeeded.

        Raises
        ------
        StartFailed
            A VM or a rank did not start; all processes were stopped again. It is a
            `HorovodMissing` if no Horovod fits the installed PyTorch.
        """
        self._state.start()
        self._cells.latest = None  # the cells of earlier ranks cannot be measured
        return self

    @classmethod
    def attach(cls, name: str | None = None) -> Cluster:
        """Attach to a cluster that a previous kernel started with `keep`.

        The ranks' variables are kept, and so are the timings of all cells that ended before that
        kernel did. If a cell still runs, wait for it; an interrupt ends the cell. If a VM was lost
        in the meantime, the cluster is ``"failed"`` until `restart` or `resize`.

        Parameters
        ----------
        name
            ``cluster.name``; not needed if only one cluster is kept.

        Raises
        ------
        NoCluster
            No such cluster runs.
        ClusterError
            This kernel is attached to it already.
        StartFailed
            Its processes have ended.
        """
        if name is not None and not isinstance(name, str):
            raise UsageError(f"attach {name!r}: not a name. Give that of a cluster, as text.")
        folder, saved = kept.find(name)
        for other in clusters_of_this_process():
            is_same = other.name == saved["name"] and other.state != "stopped"
            if is_same and not other._state.forked:
                raise ClusterError(
                    f"Cannot attach to {other.name}: this kernel is attached already. Use the "
                    "Cluster object that it has, or restart the kernel and attach again; variables "
                    "are kept."
                )
        _log.info("attaching to the kept cluster %s", saved["name"])
        cluster = cls.__new__(cls)
        try:
            # the numbers of cells begin above those of an earlier kernel
            options = Options.from_plain(saved["options"])
            cluster._set_up(options, saved["name"], int(time.time()))
            recovery.attach(cluster._state, folder, saved)
        except (AttributeError, KeyError, TypeError) as error:
            raise StartFailed(
                f"cannot attach to {saved['name']}: {folder / 'cluster.json'} is damaged, or of "
                f"another version ({type(error).__name__}: {error})",
                fix="end its processes, and start another cluster",
            ) from error
        return cluster

    def stop(self) -> None:
        """Stop every process of the cluster; its timings are kept. May be called twice.

        A process that was forked from the cluster's process does nothing.
        """
        try:
            # the conclusion asks agents; if it takes too long, `verdict` computes it later
            self._conclusions.wait()
        finally:
            self._state.stop()
        self._conclusions.wait()  # the stop may have ended a cell, which requests a conclusion

    def restart(self, ranks: Ranks = None) -> Cluster:
        """Replace the processes of some ranks; the others keep their variables.

        A lost VM is used again if it answers. If no rank is lost but the ring could not be
        formed, it is formed again, and all variables are kept. If an earlier change was
        interrupted, the missing ranks are started. Broadcast the parameters and the optimizer's
        state afterwards, because new ranks have no variables.

        Parameters
        ----------
        ranks
            The ranks to replace, such as ``"0,2-3"``. The default is the lost ranks, or all ranks
            if MPI connects them.

        Raises
        ------
        UsageError
            No ranks were named, no rank is lost, and the ring is not broken; or ranks were
            named after an interrupted change.
        StartFailed
            A VM does not answer, or a new process did not start.
        """
        changes.restart(self._state, ranks)
        return self

    def resize(self, n: int | None = None) -> Cluster:
        """Change the number of ranks between cells; the remaining ranks keep their variables.

        Parameters
        ----------
        n
            The new number; None for the ranks that are left when some are lost.

        Raises
        ------
        UsageError
            The VMs have fewer slots, no rank would be left, or `n` is above the maximum for one
            machine.
        StartFailed
            A new process did not start.
        """
        if n is not None:
            n = checked_n(n, None) if self.options.remote else checked_n(n)
        message = f"going on with {n} ranks" if n else "going on with the ranks that are left"
        changes.change_ranks(self._state, message, lambda engines: engines.resize(n), n)
        return self

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
