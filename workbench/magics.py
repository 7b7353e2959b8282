"""The IPython magics: each parses its line, calls the package, and returns a view."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, cast

from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

import workbench
from workbench.cluster.start_options import START_OPTIONS, arguments
from workbench.errors import CellError, UsageError, WorkbenchError
from workbench.magic_line import parse_line

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from workbench.cluster import Cluster, RunResult
    from workbench.resources import Snapshot

_CLUSTER_VIEWS = ("live", "summary", "table", "waterfall", "ranks", "collectives")
_RECORDING = ("on", "off", "overhead")
_VIEWS = (*_CLUSTER_VIEWS, "list", "open", "compare", "replay", "profile", *_RECORDING)
_VERBS = ("start", "status", "stop", "interrupt", "restart", "resize", "attach", "bundle", "log")

_SHOWN_LOG_LINES = 200
"""Lines of each process that ``%cluster log`` shows; `Cluster.logs` returns more."""


def _start_arguments(magic: Callable[..., Any]) -> Callable[..., Any]:
    """Declare the options of a start as options of a magic."""
    for option in reversed(START_OPTIONS):
        argument_type = int if option.is_number else str
        declare = argument(
            option.flag, type=argument_type, default=None, metavar=option.metavar, help=option.help
        )
        magic = declare(magic)
    return magic


@magics_class
class WorkbenchMagics(Magics):
    """The magics that ``%load_ext workbench`` registers."""

    @magic_arguments()
    @argument("verb", nargs="?", choices=_VERBS, default=None, help="what to do; status by default")
    @_start_arguments
    @argument("--no-record", action="store_true", default=None, help="start: do not record")
    @argument("--cold", action="store_true", default=None, help="start: without a warm process")
    @argument("--ranks", default=None, help="restart: such as 0,2-3; lost ranks by default")
    @argument("--name", default=None, help="attach: name of the cluster, if several run")
    @argument("--out", default=None, metavar="FILE", help="bundle: where it is written")
    @line_magic
    def cluster(self, line: str) -> Any:
        """Start the notebook's cluster, change it, or show its status.

        ``cluster = %cluster start -n 2``; ``%cluster start --hosts vm1:2,vm2:2``;
        ``%cluster start --launcher slurm -n 4 --partition gpu --time 2:00:00 --gpus-per-task 1``;
        ``%cluster start --profile NAME``; ``%cluster restart --ranks 1``; ``%cluster resize -n 6``.

        The first start on this machine leaves a warm process, with PyTorch and the backend loaded,
        from which later ones are forked in half a second; ``%cluster status`` shows its memory.
        ``--cold`` neither uses nor leaves one.

        ``%cluster interrupt`` ends a cell in the background (``%%distributed --noblock``), as
        the stop button ends one in the foreground: variables are kept, and queued cells run next.
        ``%cluster bundle --out FILE`` writes what is known about all ranks and VMs to one file.
        ``%cluster log`` prints the newest log records of the kernel, the agents and the ranks;
        ``GRADIENT_WORKBENCH_LOG=debug``, set before the kernel starts, adds details.
        """
        args = parse_line(self.cluster, line)
        from workbench.cluster import registry
        from workbench.widgets.clusters import start_progress

        if args.verb is None:
            return self._status(args, line)
        if args.verb == "start":
            options = arguments(
                {option.name: getattr(args, option.name) for option in START_OPTIONS}
            )
            with start_progress():
                return registry.start(record=not args.no_record, cold=bool(args.cold), **options)
        if args.verb == "attach":
            return registry.attach(args.name)
        if args.verb == "bundle":
            return registry.required().bundle(args.out)
        if args.verb == "log":
            return _show_logs(registry.required())
        if args.verb == "interrupt":
            return _interrupt(registry.required())
        if args.verb == "restart":
            return registry.required().restart(args.ranks)
        if args.verb == "resize":
            return registry.required().resize(args.n)
        return registry.stop() if args.verb == "stop" else registry.required()

    @magic_arguments()
    @argument("--ranks", default=None, help="such as 0,2-3; all by default")
    @argument(
        "--noblock", action="store_true", help="return immediately; output continues to appear"
    )
    @argument("--out", metavar="NAME", default=None, help="store the result under this name")
    @argument("--timeout", default=None, metavar="TIME", help="interrupt after this: 90s, 5m")
    @cell_magic
    def distributed(self, line: str, cell: str) -> None:
        """Run the cell on the ranks.

        Each rank has its own namespace, which is kept between cells. Initially it contains:

        - `hvd`: the initialized module ``horovod.torch``; with ``--backend ddp``, `dist` instead:
          torch.distributed, whose default process group is ready. The environment has the
          variables of torchrun, whose scripts run unchanged
        - `rank`, `world_size`: the rank's number, and the number of ranks
        - `local_rank`: the rank's number among those on its VM
        - `device`: the ``torch.device`` to train on: the rank's GPU, or the CPU

        Variables of the notebook are not available: ``%push name`` sends them, and
        ``%pull name`` retrieves values. `_distributed` has the output and the last values of the
        latest cell (``.output``, ``.values``); ``--out NAME`` stores them under a name.
        `breakpoint()` and `input()` in the cell open a prompt in the notebook for each rank.
        """
        args = parse_line(self.distributed, line)
        from workbench.cluster import registry

        cluster = registry.required()
        if args.out and (not args.out.isidentifier() or iskeyword(args.out)):
            raise UsageError(f"--out {args.out}: not a valid Python name. Name it e.g. result.")
        result: object
        if args.noblock:
            result = future = cluster.run_in_background(cell, args.ranks, args.timeout)
            future.add_done_callback(self._end_background)
        else:
            result = self._store_result(lambda: cluster.run(cell, args.ranks, args.timeout))
        if args.out:
            self._namespace[args.out] = result

    def _store_result(self, run: Callable[[], RunResult]) -> RunResult:
        """Run a cell and store its result as `_distributed`; store the output of a failed cell."""
        from workbench.cluster import RunResult

        try:
            result = self._namespace["_distributed"] = run()
        except CellError as error:
            self._namespace["_distributed"] = RunResult(error.output, {})
            raise
        return result

    def _end_background(self, done: Future[RunResult]) -> None:
        """Store the result of a background cell, or print its error; called in its thread."""
        try:
            self._store_result(done.result)
        except BaseException as error:  # noqa: BLE001 - `result` of the future raises it
            if isinstance(error, WorkbenchError):
                sys.stderr.write("\n".join(error._render_traceback_()) + "\n")

    def _status(self, args: Any, line: str) -> Any:
        """Return the view of ``%cluster`` without a verb.

        In a notebook, return a form with the status. Elsewhere, return the cluster; without a
        cluster, print how to start one.
        """
        if line.strip():
            option = next(name for name, value in vars(args).items() if value is not None)
            raise UsageError(
                f"%cluster {line}: {option!r} without a verb. Write one of {', '.join(_VERBS)}."
            )
        from workbench.cluster import registry

        registry.adopt()
        cluster = registry.current()
        if getattr(self.shell, "kernel", None) is not None:
            from workbench.widgets.study import cluster_form_view

            return cluster_form_view()
        if cluster is None:
            sys.stdout.write("No cluster runs in this notebook. Start one with %cluster start.\n")
        return cluster

    @magic_arguments()
    @argument("names", nargs="+", help="variables of this notebook")
    @argument("--ranks", default=None, help="such as 0,2-3; all by default")
    @line_magic
    def push(self, line: str) -> None:
        """Copy variables of this notebook to the ranks."""
        args = parse_line(self.push, line)
        from workbench.cluster import registry
        from workbench.cluster.transfer import check_pushed

        cluster = registry.required()
        check_pushed(
            {name: self._namespace.get(name) for name in args.names}, cluster.options.backend
        )
        missing = [name for name in args.names if name not in self._namespace]
        if missing:
            raise UsageError(
                f"%push {line}: no {', '.join(missing)} in this notebook. Assign it first."
            )
        values = {name: self._namespace[name] for name in args.names}
        cluster.push(values, args.ranks)

    @magic_arguments()
    @argument("names", nargs="+", help="variables of the ranks")
    @argument("--ranks", default=None, help="such as 0,2-3; all by default")
    @line_magic
    def pull(self, line: str) -> None:
        """Copy variables of the ranks here: a list by rank, or a single value for one rank."""
        args = parse_line(self.pull, line)
        from workbench.cluster import registry

        values = registry.required().pull(args.names, args.ranks)
        for name in args.names:
            rank_values = [row[name] for row in values.values()]
            self._namespace[name] = rank_values[0] if len(rank_values) == 1 else rank_values

    @magic_arguments()
    @argument("view", nargs="?", choices=_VIEWS, default="live")
    @argument("names", nargs="*", help="number of an iteration, names of runs, or a time")
    @argument("--pairs", type=int, default=None, help="overhead: how many; 12 by default")
    @argument("--timeout", default=None, metavar="TIME", help="overhead: 10m by default")
    @argument("--speed", type=float, default=None, help="replay: 2 is twice as fast")
    @line_cell_magic
    def timings(self, line: str, cell: str | None = None) -> Any:
        """Show the timings: live (default), a summary, a table, a figure, or recorded runs.

        ``%timings waterfall 120``, ``%timings ranks`` and ``%timings collectives`` draw those of
        the cluster, or of a recorded run (``%timings waterfall NAME 120``). ``%timings list``;
        ``%timings open NAME``; ``%timings compare NAME NAME``, or one name and the cluster;
        ``%timings replay NAME``, also of a session file, plays a run here and in the sidebar.

        ``%timings off`` removes every hook from the ranks, and ``%timings on`` installs them
        again, both from the next cell. ``%timings overhead`` measures what recording adds to
        an iteration: it runs the latest ``%%distributed`` cell, or the cell below
        ``%%timings overhead``, repeatedly with and without recording. Each time, its model
        continues to train, and its files are written again. An interrupt ends it.
        ``%timings profile 5s`` or ``%timings profile 20 iterations`` profiles the running or next
        training on all ranks, as one trace for Perfetto; so does the live view's button.
        """
        args = parse_line(self.timings, line)
        from workbench.cluster import registry
        from workbench.widgets import profiles, recording, runs, timings_figures

        recording.check(line, args, cell, _RECORDING)
        if args.view in _RECORDING:
            return recording.switch_or_measure(registry.required(), args, cell)
        if args.view == "profile":
            return profiles.request_profile(registry.required(), line, args.names)
        if args.view in runs.SUBCOMMANDS:
            return runs.runs_view(args.view, args.names, args.speed)
        if args.view in timings_figures.SUBCOMMANDS:
            return timings_figures.timings_figure(registry.current(), args.view, args.names)
        if args.names:
            raise UsageError(f"%timings {line}: {args.view} accepts no argument. Remove it.")
        from workbench.widgets.views import timings_view

        return timings_view(registry.required(), args.view)

    @magic_arguments()
    @argument("file", nargs="?", help="a snapshot or topology file instead of this machine; use")
    @argument("--days", type=int, default=None, help="use: of how many days; 7 by default")
    @argument("--write-topology", metavar="FILE", default=None, help="write a topology file")
    @line_magic
    def resources(self, line: str) -> Any:
        """Show the hardware of this machine, or of the VM that a file describes.

        ``%resources use`` shows how much of their allocated GPUs notebooks have used.
        """
        args = parse_line(self.resources, line)
        from workbench.widgets import machine, use

        if args.file == "use" or args.days is not None:
            return use.use_view(line, args)
        return machine.resources_view(_load(args.file), args.write_topology)

    @magic_arguments()
    @argument("files", nargs="*", help="snapshots or topology files, instead of this machine")
    @argument("--hosts", default=None, help="check these VMs: vm1:2,vm2:2, or a host file")
    @argument("--ssh-config", default=None, help="ssh client configuration file")
    @argument("--ssh-key", default=None, metavar="FILE", help="private key for the hosts")
    @line_magic
    def doctor(self, line: str) -> Any:
        """Show configuration problems of this machine or of VMs, their cost and their fixes."""
        args = parse_line(self.doctor, line)
        if args.hosts and args.files:
            raise UsageError(f"%doctor {line}: both VMs and files were given. Give one of them.")
        if len(args.files) > 1:
            from workbench.resources.snapshot import load_vms
            from workbench.widgets.findings import VmsView

            return VmsView(load_vms(args.files))
        if args.hosts:
            from workbench.cluster.launchers.preflight import survey
            from workbench.widgets.hosts_view import HostsView

            return HostsView(survey(args.hosts, args.ssh_config, args.ssh_key))
        from workbench.widgets.machine import doctor_view

        return doctor_view(_load(args.files[0] if args.files else None))

    @magic_arguments()
    @argument("run", nargs="?", metavar="NAME", help="a recorded run, instead of the cluster")
    @argument("--latest", type=int, metavar="N", help="the newest N iterations of any cells")
    @argument("--all", action="store_true", help="all iterations, not only those of the last cell")
    @argument("--sample", action="store_true", help="find the lines with time in no phase")
    @line_magic
    def explain(self, line: str) -> Any:
        """Show what slows down the training, and what each fix would save.

        By default, this explains the last cell that recorded iterations. ``--sample`` finds the
        lines of Python with time in no phase: of a cell that runs in the background, or of the
        next cell.

        After each cell that recorded iterations, the first cause is in its verdict, a line that the
        live view and ``%timings list`` show and ``wb.verdict(cluster)`` returns. The live view's
        Explain button lists the causes of the newest iterations, also while a cell trains.
        """
        args = parse_line(self.explain, line)
        if args.all and args.latest is not None:
            raise UsageError(f"%explain {line}: --all and --latest exclude each other. Name one.")
        from workbench.widgets.views import explain_view

        return explain_view(args.run, args.latest, all_cells=args.all, sample=args.sample)

    @property
    def _namespace(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.shell.user_ns)


def _load(file: str | None) -> Snapshot | None:
    """Load a snapshot or topology file, if one is given."""
    if file is None:
        return None
    from workbench.resources.snapshot import load

    return load(file)


def _interrupt(cluster: Cluster) -> None:
    from workbench.ranks import phrase

    ranks = phrase(cluster.interrupt())
    sys.stdout.write(
        f"Interrupting the cell on {ranks}. Its output shows the result; queued cells run next.\n"
    )


def _show_logs(cluster: Cluster) -> None:
    """Print the newest log records of each process."""
    for process, text in cluster.logs().items():
        log_text = text if isinstance(text, str) else f"unknown: {text.reason}"
        lines = log_text.splitlines()[-_SHOWN_LOG_LINES:] or ["(no records)"]
        sys.stdout.write(f"== {process}\n" + "".join(f"{line}\n" for line in lines))


def _load_cluster() -> None:
    """Load the public `Cluster`, which stores verdicts; called when the first one is started."""
    workbench.Cluster  # noqa: B018 - a module attribute that is imported on first use


def register(shell: InteractiveShell) -> None:
    """Register the magics, and connect the kernel to the panel if it runs in Jupyter."""
    from workbench.cluster import registry
    from workbench.widgets import clusters, panel, recording, runs

    shell.register_magics(WorkbenchMagics)
    registry.subscribe(_load_cluster)
    clusters.register(shell.display_formatter)
    runs.register(shell.display_formatter)
    recording.register(shell.display_formatter)
    panel.register(shell)
