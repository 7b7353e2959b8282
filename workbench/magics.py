"""The magics: each parses its line, delegates, and displays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import (
    argument,
    magic_arguments,
    parse_argstring,
)

from workbench.errors import UsageError, WorkbenchError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from IPython.core.interactiveshell import InteractiveShell

    from workbench.resources import Snapshot

_VIEWS = (
    *("live", "summary", "table", "waterfall", "ranks", "collectives"),
    *("list", "open", "compare"),
)
_VERBS = ("start", "status", "stop", "restart", "resize", "attach")


@magics_class
class WorkbenchMagics(Magics):
    """``%load_ext workbench`` registers these."""

    @magic_arguments()
    @argument("verb", choices=_VERBS, help="what to do")
    @argument("-n", type=int, default=None, help="start, resize: ranks; 2 on this machine")
    @argument("--hosts", default=None, help="start: VMs and their ranks, vm1:2,vm2:2, or a file")
    @argument("--ssh-config", default=None, help="start: an ssh client configuration of its own")
    @argument("--release-after", default=None, metavar="TIME", help="start: stop when idle, 30m")
    @argument("--keep", default=None, metavar="TIME", help="start: outlive the kernel, 30m")
    @argument("--ranks", default=None, help="restart: such as 0,2-3; those that are lost")
    @argument("--name", default=None, help="attach: the cluster's, where several run")
    @line_magic
    def cluster(self, line: str) -> Any:
        """Bring the notebook's cluster up, change it, or show it.

        ``cluster = %cluster start -n 2``; ``%cluster start --hosts vm1:2,vm2:2``;
        ``%cluster restart --ranks 1``; ``%cluster resize -n 6``.
        """
        args = _parse(self.cluster, line)
        from workbench.cluster import registry

        if args.verb == "start":
            options = {"hosts": args.hosts, "ssh_config": args.ssh_config}
            times = {"release_after": args.release_after, "keep": args.keep}
            with _progress_shown():
                return registry.start(args.n, **times, **options)
        if args.verb == "attach":
            return registry.attach(args.name)
        if args.verb == "restart":
            return registry.required().restart(args.ranks)
        if args.verb == "resize":
            return registry.required().resize(args.n)
        return registry.stop() if args.verb == "stop" else registry.required()

    @magic_arguments()
    @argument("--ranks", default=None, help="such as 0,2-3; all by default")
    @argument("--noblock", action="store_true", help="return at once; output goes on appearing")
    @argument("--out", metavar="NAME", default=None, help="keep the result under this name")
    @argument("--timeout", type=float, default=None, metavar="SECONDS", help="interrupt after this")
    @cell_magic
    def distributed(self, line: str, cell: str) -> None:
        """Run the cell on the ranks, as a notebook would."""
        args = _parse(self.distributed, line)
        from workbench.cluster import registry

        cluster = registry.required()
        if args.out and not args.out.isidentifier():
            raise UsageError(f"--out {args.out!r} was asked for: that is no Python name")
        result: object
        if args.noblock:
            result = future = cluster.run_in_background(cell, args.ranks, args.timeout)
            future.add_done_callback(_show_failure)
        else:
            result = cluster.run(cell, args.ranks, args.timeout)
        if args.out:
            self._namespace[args.out] = result

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
    @argument("names", nargs="*", help="an iteration's number, or runs' names")
    @line_magic
    def timings(self, line: str) -> Any:
        """Show the timings: live (default), their summary, the table; a figure; or earlier runs.

        ``%timings waterfall 120``; ``%timings ranks``; ``%timings collectives``.
        ``%timings list``; ``%timings open NAME``; ``%timings compare NAME NAME``, or with one
        name that run against the cluster's.
        """
        args = _parse(self.timings, line)
        from workbench.cluster import registry
        from workbench.widgets import runs, study

        if args.view in runs.VERBS:
            return runs.runs_view(args.view, args.names)
        if args.view in study.VERBS:
            return study.study_view(registry.required(), args.view, args.names)
        if args.names:
            raise UsageError(f"%timings {line} was asked for: {args.view} takes no more")
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
            raise UsageError(f"%doctor {line} was asked for: name VMs or files, not both")
        if len(args.files) > 1:
            from workbench.resources.sent import load_vms
            from workbench.widgets.findings import VmsView

            return VmsView(load_vms(args.files))
        if args.hosts:
            from workbench.cluster.survey import survey
            from workbench.widgets.survey import SurveyView

            return SurveyView(survey(args.hosts, args.ssh_config))
        from workbench.widgets.machine import doctor_view

        return doctor_view(_sent(args.files[0] if args.files else None))

    @magic_arguments()
    @argument("--latest", type=int, metavar="N", help="look at the newest N iterations")
    @line_magic
    def explain(self, line: str) -> Any:
        """Say what slows the training, and what each cure would save."""
        args = _parse(self.explain, line)
        from workbench.advisor import explain
        from workbench.cluster import registry
        from workbench.widgets.views import Causes

        return Causes(explain(registry.required(), args.latest))

    @property
    def _namespace(self) -> dict[str, Any]:
        namespace: dict[str, Any] = self.shell.user_ns
        return namespace


def _sent(file: str | None) -> Snapshot | None:
    """Read a file that was sent; None where none is named."""
    if file is None:
        return None
    from workbench.resources.sent import load

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
        raise UsageError(f"%{magic.__name__} {line} was asked for: {error}") from None
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
