"""The magics: each parses its line, delegates, and displays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import (
    argument,
    magic_arguments,
    parse_argstring,
)

from workbench.errors import CellError, UsageError, WorkbenchError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from workbench.cluster import Cluster, RunResult
    from workbench.resources import Snapshot

_VIEWS = (
    *("live", "summary", "table", "waterfall", "ranks", "collectives"),
    *("list", "open", "compare"),
)
_VERBS = ("start", "status", "stop", "interrupt", "restart", "resize", "attach")


@magics_class
class WorkbenchMagics(Magics):
    """``%load_ext workbench`` registers these."""

    @magic_arguments()
    @argument("verb", nargs="?", choices=_VERBS, default=None, help="what to do; status by default")
    @argument("-n", type=int, default=None, help="start, resize: ranks; 2 on this machine")
    @argument("--hosts", default=None, help="start: VMs and their ranks, vm1:2,vm2:2, or a file")
    @argument("--ssh-config", default=None, help="start: an ssh client configuration of its own")
    @argument("--release-after", default=None, metavar="TIME", help="start: stop when idle, 30m")
    @argument("--keep", default=None, metavar="TIME", help="start: outlive the kernel, 30m")
    @argument("--ranks", default=None, help="restart: such as 0,2-3; those that are lost")
    @argument("--name", default=None, help="attach: the cluster's, where several run")
    @line_magic
    def cluster(self, line: str) -> Any:
        """Start the notebook's cluster, change it, or show its status.

        ``cluster = %cluster start -n 2``; ``%cluster start --hosts vm1:2,vm2:2``;
        ``%cluster restart --ranks 1``; ``%cluster resize -n 6``.

        ``%cluster interrupt`` ends the cell that runs in the background
        (``%%distributed --noblock``), as the stop button ends one that the
        notebook waits for: variables are kept, and cells queued behind it run next.
        """
        args = _parse(self.cluster, line)
        from workbench.cluster import registry

        if args.verb is None:
            return self._status(args, line)
        if args.verb == "start":
            options = {"hosts": args.hosts, "ssh_config": args.ssh_config}
            times = {"release_after": args.release_after, "keep": args.keep}
            with _progress_shown():
                return registry.start(args.n, **times, **options)
        if args.verb == "attach":
            return registry.attach(args.name)
        if args.verb == "interrupt":
            return _interrupt(registry.required())
        if args.verb == "restart":
            return registry.required().restart(args.ranks)
        if args.verb == "resize":
            return registry.required().resize(args.n)
        return registry.stop() if args.verb == "stop" else registry.required()

    @magic_arguments()
    @argument("--ranks", default=None, help="such as 0,2-3; all by default")
    @argument("--noblock", action="store_true", help="return at once; output goes on appearing")
    @argument("--out", metavar="NAME", default=None, help="keep the result under this name")
    @argument("--timeout", default=None, metavar="TIME", help="interrupt after this: 90s, 5m")
    @cell_magic
    def distributed(self, line: str, cell: str) -> None:
        """Run the cell on the ranks, as a notebook would.

        Each rank has a namespace of its own, which is kept between cells. From the
        start it holds:

        - `hvd`: the module ``horovod.torch``, initialised
        - `rank`, `world_size`: the rank's number, and how many ranks there are
        - `local_rank`: the rank's number among those on its VM
        - `device`: the ``torch.device`` to train on, the rank's own GPU or the CPU

        Names of the notebook are not there: ``%push name`` sends them, and
        ``%pull name`` brings values back. What the cell printed and its last
        values stay in `_distributed` until the next one (``.output``,
        ``.values``); ``--out NAME`` keeps them under a name.
        """
        args = _parse(self.distributed, line)
        from workbench.cluster import registry

        cluster = registry.required()
        if args.out and (not args.out.isidentifier() or iskeyword(args.out)):
            raise UsageError(f"--out {args.out}: not a valid Python name. Name it e.g. result.")
        result: object
        if args.noblock:
            result = future = cluster.run_in_background(cell, args.ranks, args.timeout)
            future.add_done_callback(self._keep)
            future.add_done_callback(_show_failure)
        else:
            result = self._run(cluster, cell, args)
        if args.out:
            self._namespace[args.out] = result

    def _run(self, cluster: Cluster, cell: str, args: Any) -> RunResult:
        done: Future[RunResult] = Future()
        try:
            done.set_result(cluster.run(cell, args.ranks, args.timeout))
        except WorkbenchError as error:
            done.set_exception(error)
            raise
        finally:
            self._keep(done)
        return done.result()

    def _keep(self, done: Future[RunResult]) -> None:
        """Keep what a cell gave as `_distributed`; of one that failed, what it printed."""
        from workbench.cluster import RunResult

        if not done.done():
            return
        error = done.exception()
        if error is None:
            self._namespace["_distributed"] = done.result()
        elif isinstance(error, CellError):
            self._namespace["_distributed"] = RunResult(error.output, {})

    def _status(self, args: Any, line: str) -> Cluster | None:
        """Return the cluster for a bare ``%cluster``; say how to start one where there is none."""
        if line.strip():
            given = next(name for name, value in vars(args).items() if value is not None)
            raise UsageError(
                f"%cluster {line}: {given!r} without a verb. Write one of {', '.join(_VERBS)}."
            )
        from workbench.cluster import registry

        cluster = registry.current()
        if cluster is None:
            sys.stdout.write("No cluster runs in this notebook. Start one with %cluster start.\n")
        return cluster

    @magic_arguments()
    @argument("names", nargs="+", help="names of this notebook")
    @argument("--ranks", default=None, help="such as 0,2-3; all by default")
    @line_magic
    def push(self, line: str) -> None:
        """Set names of this notebook in the ranks."""
        args = _parse(self.push, line)
        from workbench.cluster import registry

        missing = [name for name in args.names if name not in self._namespace]
        if missing:
            raise UsageError(
                f"%push {line}: no {', '.join(missing)} in this notebook. Assign it first."
            )
        values = {name: self._namespace[name] for name in args.names}
        registry.required().push(values, args.ranks)

    @magic_arguments()
    @argument("names", nargs="+", help="names of the ranks")
    @argument("--ranks", default=None, help="such as 0,2-3; all by default")
    @line_magic
    def pull(self, line: str) -> None:
        """Set names here to the ranks' values: a list by rank, a single value for one rank."""
        args = _parse(self.pull, line)
        from workbench.cluster import registry

        values = registry.required().pull(args.names, args.ranks)
        for name in args.names:
            found = [row[name] for row in values.values()]
            self._namespace[name] = found[0] if len(found) == 1 else found

    @magic_arguments()
    @argument("view", nargs="?", choices=_VIEWS, default="live")
    @argument("names", nargs="*", help="an iteration's number, or names of runs")
    @line_magic
    def timings(self, line: str) -> Any:
        """Show the timings: live (default), their summary, the table; a figure; or earlier runs.

        ``%timings waterfall 120``; ``%timings ranks``; ``%timings collectives``: of the
        cluster, or with a run's name behind it of that run (``%timings waterfall NAME 120``).
        ``%timings list``; ``%timings open NAME``; ``%timings compare NAME NAME``, or with one
        name that run against the cluster's.
        """
        args = _parse(self.timings, line)
        from workbench.cluster import registry
        from workbench.widgets import runs, study

        if args.view in runs.VERBS:
            return runs.runs_view(args.view, args.names)
        if args.view in study.VERBS:
            return study.study_view(registry.current(), args.view, args.names)
        if args.names:
            raise UsageError(f"%timings {line}: {args.view} takes no more. Leave the rest out.")
        from workbench.widgets.views import timings_view

        return timings_view(registry.required(), args.view)

    @magic_arguments()
    @argument("file", nargs="?", help="a snapshot or a topology file, instead of this machine")
    @argument("--write-topology", metavar="FILE", default=None, help="write a topology file")
    @line_magic
    def resources(self, line: str) -> Any:
        """Show what this machine has, or the VM that a file tells of."""
        args = _parse(self.resources, line)
        from workbench.widgets.machine import resources_view

        view = resources_view(_sent(args.file))
        if args.write_topology:
            from workbench.resources.topology_snapshot import write_topology

            write_topology(view.snapshot, args.write_topology)
        return view

    @magic_arguments()
    @argument("files", nargs="*", help="snapshots or topology files, instead of this machine")
    @argument("--hosts", default=None, help="look at VMs instead: vm1:2,vm2:2, or a host file")
    @argument("--ssh-config", default=None, help="an ssh client configuration of its own")
    @line_magic
    def doctor(self, line: str) -> Any:
        """Show what is set up wrong on this machine, or on VMs, why it costs, and the cure."""
        args = _parse(self.doctor, line)
        if args.hosts and args.files:
            raise UsageError(f"%doctor {line}: VMs and files were named. Name one or the other.")
        if len(args.files) > 1:
            from workbench.resources.load_snapshot import load_vms
            from workbench.widgets.findings import VmsView

            return VmsView(load_vms(args.files))
        if args.hosts:
            from workbench.cluster.survey import survey
            from workbench.widgets.survey import SurveyView

            return SurveyView(survey(args.hosts, args.ssh_config))
        from workbench.widgets.machine import doctor_view

        return doctor_view(_sent(args.files[0] if args.files else None))

    @magic_arguments()
    @argument("run", nargs="?", metavar="NAME", help="a run on disk, instead of the cluster")
    @argument("--latest", type=int, metavar="N", help="the newest N iterations, of any cell")
    @argument("--all", action="store_true", help="all iterations, not only the last cell's")
    @line_magic
    def explain(self, line: str) -> Any:
        """Say what slows the training, and what each cure would save.

        It explains the last cell that recorded iterations, unless told otherwise.
        """
        args = _parse(self.explain, line)
        if args.all and args.latest is not None:
            raise UsageError(f"%explain {line}: --all and --latest exclude each other. Name one.")
        from workbench.advisor import explain
        from workbench.cluster import registry
        from workbench.widgets.views import Causes

        if args.run is None:
            training: Any = registry.required()
        else:
            from workbench.timings.run import open_run

            training = open_run(args.run)
        return Causes(explain(training, args.latest, all_cells=args.all))

    @property
    def _namespace(self) -> dict[str, Any]:
        namespace: dict[str, Any] = self.shell.user_ns
        return namespace


def _sent(file: str | None) -> Snapshot | None:
    """Read a file that was sent; None where none is named."""
    if file is None:
        return None
    from workbench.resources.load_snapshot import load

    return load(file)


@contextmanager
def _progress_shown() -> Iterator[None]:
    """Print how far each VM is, whenever one has come further."""
    from workbench.cluster import registry

    shown: list[str] = []

    def show() -> None:
        cluster = registry.current()
        if cluster is None or cluster.options.hosts is None or cluster.state != "starting":
            return
        if cluster.message not in shown:
            shown.append(cluster.message)
            sys.stdout.write(cluster.message + "\n")
            sys.stdout.flush()

    stop = registry.subscribe(show)
    try:
        yield
    finally:
        stop()


def _interrupt(cluster: Cluster) -> None:
    from workbench.cluster.ranks import phrase

    ranks = phrase(cluster.interrupt())
    sys.stdout.write(
        f"Interrupting the cell on {ranks}. Its own output says what came of it; cells that are "
        "queued behind it run next.\n"
    )


def _show_failure(future: Future[Any]) -> None:
    """Print the error of a cell in the background, in whose thread this is called."""
    error = future.exception()
    if isinstance(error, WorkbenchError):
        sys.stderr.write("\n".join(error._render_traceback_()) + "\n")


def _parse(magic: Any, line: str) -> Any:
    """Parse a magic's line; what argparse would exit for becomes a `UsageError`."""
    from IPython.core.error import UsageError as IPythonUsageError

    try:
        args = parse_argstring(magic, line)
    except (IPythonUsageError, ValueError) as error:
        wrong = str(error).rstrip(".")
        raise UsageError(f"%{magic.__name__} {line}: {wrong}. See %{magic.__name__}?") from None
    for name, value in vars(args).items():  # IPython splits at quotes, and leaves them there
        setattr(args, name, [*map(_bare, value)] if isinstance(value, list) else _bare(value))
    return args


def _bare(value: Any) -> Any:
    quoted = isinstance(value, str) and len(value) > 1 and value[0] == value[-1] in "'\""
    return value[1:-1] if quoted else value


def register(shell: InteractiveShell) -> None:
    """Register the magics, and the panel's link where the front end has one."""
    from workbench.widgets import clusters, panel, runs

    shell.register_magics(WorkbenchMagics)
    # by name, so that nothing of the cluster is loaded before one is wanted
    for mime, show in (("text/html", clusters.to_html), ("text/plain", clusters.to_text)):
        formatter = shell.display_formatter.formatters[mime]
        formatter.for_type_by_name("workbench.cluster.cluster", "Cluster", show)
    runs.register(shell.display_formatter)
    panel.register(shell)
