"""The command line: ``workbench COMMAND``.

Each subcommand has two functions. The first adds its options to the parser. The second runs it
and returns the exit status, and imports the modules that only this subcommand needs.
"""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import re
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import cli_runs, logs
from workbench._version import __version__
from workbench.errors import UsageError, WorkbenchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from workbench.doctor import Finding
    from workbench.resources import Snapshot

_SIGPIPE_STATUS = 141
"""Exit status that a shell reports for a process terminated by SIGPIPE."""
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status.

    Parameters
    ----------
    argv
        The arguments without the program's name; by default those of ``sys.argv``.

    Examples
    --------
    >>> main(["plan", "340M", "--gbps", "10"])
    parameters                    340,000,000  counted in the model, or given
    gradients                         1.36 GB  340,000,000 × 4 B
    ...
    0
    """
    logs.print_all()
    _escape_unencodable_characters()
    arguments = make_parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # report a write error here, not at the interpreter's exit
    except WorkbenchError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        _discard_output()
        return _SIGPIPE_STATUS
    except OSError as error:
        if error.filename is not None or error.errno not in _DISK_FULL:
            raise
        _discard_output()
        print(
            f"standard output: {error.strerror}. Write it to a disk with free space.",
            file=sys.stderr,
        )
        return 1
    return status


def _escape_unencodable_characters() -> None:
    r"""Write characters that a terminal's encoding lacks as ``\xe9``, instead of failing.

    Names of hosts, devices and files may contain any characters, and the encoding of a terminal
    may be ASCII.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Redirect standard output to /dev/null, so that the flush at exit succeeds."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="workbench", description="What gradient communication costs, live in Jupyter."
    )
    parser.add_argument("--version", action="version", version=f"workbench {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_resources(commands)
    _add_doctor(commands)
    _add_plan(commands)
    cli_runs.add(commands)
    _add_build_horovod(commands)
    _add_build_ddp(commands)
    _add_demo(commands)
    return parser


def _add_resources(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "resources",
        help="show the GPUs, NICs and limits of this VM",
        description="Show the GPUs, NICs and limits of this VM. A value that cannot be read is "
        "shown as unknown, with the reason.",
    )
    _add_sources(command, "a snapshot (from `resources --json`) or a topology file")
    formats = command.add_mutually_exclusive_group()
    formats.add_argument(
        "--json", action="store_true", help="print JSON that can be loaded elsewhere"
    )
    formats.add_argument(
        "--write-topology", metavar="FILE", type=Path,
        help="write a topology file for NCCL_TOPO_FILE, from this VM's topology file or sysfs",
    )  # fmt: skip
    command.set_defaults(run=_resources)


def _add_sources(command: argparse.ArgumentParser, files: str) -> None:
    command.add_argument("files", nargs="*", metavar="FILE", help=f"{files}, instead of this VM")
    sources = command.add_mutually_exclusive_group()
    sources.add_argument("--file", help="a snapshot (from `resources --json`), instead of this VM")
    sources.add_argument(
        "--topology", metavar="FILE", help="a topology file (NCCL_TOPO_FILE), instead of this VM"
    )


def _resources(arguments: argparse.Namespace) -> int:
    if len(arguments.files) > 1:
        raise UsageError(
            f"workbench resources {' '.join(arguments.files)}: shows one VM. Name one file, or "
            "compare them with `workbench doctor`."
        )
    snapshot = _snapshot(arguments)
    if arguments.write_topology is not None:
        from workbench.resources.topology_snapshot import write_topology

        write_topology(snapshot, arguments.write_topology)
        print(f"Wrote {arguments.write_topology}: NCCL_TOPO_FILE={arguments.write_topology}")
        return 0
    print(snapshot.to_json() if arguments.json else _wrapped_text(snapshot))
    return 0


def _wrapped_text(snapshot: Snapshot) -> str:
    if not sys.stdout.isatty():
        return str(snapshot)
    from workbench.resources.summary import wrapped

    return "\n".join(wrapped(snapshot, shutil.get_terminal_size((100, 24)).columns))


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "doctor",
        help="find configuration problems of this VM, and their fixes",
        description="Find configuration problems of this VM, what they cost, and the setting that "
        "fixes them. Several VMs are also compared with each other. The exit status is 1 if "
        "an error was found.",
    )
    _add_sources(command, "snapshots (from `resources --json`) or topology files")
    command.add_argument("--json", action="store_true", help="the findings as JSON")
    command.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from workbench.doctor import describe, describe_all, diagnose, diagnose_all
    from workbench.resources.snapshot import load_vms

    if len(arguments.files) > 1:
        _check_one_source(arguments)
        vms = load_vms(arguments.files)
        findings_by_vm = {vm: diagnose(snapshot) for vm, snapshot in vms.items()}
        across = diagnose_all(vms)
        if arguments.json:
            print(_findings_json(findings_by_vm, across))
        else:
            print(describe_all(vms, findings_by_vm, across))
        return _status(
            [
                *across,
                *(finding for vm_findings in findings_by_vm.values() for finding in vm_findings),
            ]
        )
    snapshot = _snapshot(arguments)
    findings = diagnose(snapshot)
    if arguments.json:
        host = snapshot.host.hostname
        print(_findings_json({host if isinstance(host, str) else "this VM": findings}, []))
    else:
        print(describe(snapshot, findings))
    return _status(findings)


def _check_one_source(arguments: argparse.Namespace) -> None:
    if arguments.files and (arguments.file or arguments.topology):
        raise UsageError(
            f"{' '.join(arguments.files)} with --file or --topology: two ways to name a file. "
            "Name all files as arguments."
        )


def _findings_json(
    findings_by_vm: Mapping[str, Sequence[Finding]], across: Sequence[Finding]
) -> str:
    """Return the findings on each VM, and on the comparison of VMs, as JSON."""
    plain = {
        "version": __version__,
        "vms": {
            vm: [asdict(finding) for finding in findings] for vm, findings in findings_by_vm.items()
        },
        "across_vms": [asdict(finding) for finding in across],
    }
    return json.dumps(plain, indent=2)


def _status(findings: Sequence[Finding]) -> int:
    return 1 if any(finding.severity == "error" for finding in findings) else 0


def _snapshot(arguments: argparse.Namespace) -> Snapshot:
    from workbench.resources import Snapshot, take_snapshot
    from workbench.resources.snapshot import load

    _check_one_source(arguments)
    if arguments.topology is not None:
        return Snapshot.from_nccl_topology(arguments.topology)
    files = arguments.files or ([] if arguments.file is None else [arguments.file])
    return load(files[0]) if files else take_snapshot()


def _add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "plan",
        help="say what a training will cost before it runs",
        description="Say what a data-parallel training will cost before it runs: bytes and time "
        "of communication, scaling over VMs, memory; each figure with its formula. In Python, "
        "workbench.fabric.plan also measures a model itself.",
    )
    command.add_argument("parameters", help="number of the model's parameters, such as 340M")
    command.add_argument("--batch", type=int, default=1, help="samples per rank and iteration")
    command.add_argument("--samples", help="samples in the data set, such as 1.28M")
    command.add_argument("--iterations", help="iterations per epoch, instead of --samples")
    command.add_argument("--epochs", type=int, default=1)
    command.add_argument("--gbps", type=float, help="rate of each VM's link in Gbit/s")
    command.add_argument("--latency-us", type=float, default=0.0, help="of an empty message, in µs")
    command.add_argument("--vms", type=int, default=4, help="largest number of VMs")
    command.add_argument("--ranks-per-vm", type=int, default=1)
    command.add_argument("--local-gbps", type=float, help="rate between ranks of one VM, Gbit/s")
    command.add_argument("--compute-ms", type=float, help="iteration without communication, in ms")
    command.add_argument("--precision", default="float32", help="float32, bfloat16 or mixed")
    command.add_argument("--optimizer", default="adam", help="sgd, momentum, adam or adamw")
    command.add_argument("--gpu", metavar="BOARD", help="as in vGPU profiles, such as A100")
    command.add_argument("--json", action="store_true", help="the figures as JSON")
    command.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    from workbench.fabric import plan

    options = vars(arguments).copy()
    for name in ("command", "run", "json"):
        del options[name]
    try:
        plan_record = plan(options.pop("parameters"), **options)
    except UsageError as error:
        raise UsageError(_name_options(str(error), options)) from None
    print(
        json.dumps(asdict(plan_record), indent=2)
        if arguments.json
        else _name_options_in_plan(str(plan_record), options)
    )
    return 0


def _name_options_in_plan(text: str, names: Iterable[str]) -> str:
    """Return a plan's text with the missing arguments named as command-line options.

    Examples
    --------
    >>> _name_options_in_plan("not known: time. Give compute_ms.", ["compute_ms"])
    'not known: time. Give --compute-ms.'
    """
    for name in names:
        pattern = rf"(?m)^(not known: .*(?:Give| or) ){name}\b"
        text = re.sub(pattern, rf"\1--{name.replace('_', '-')}", text)
    return text


def _name_options(text: str, names: Iterable[str]) -> str:
    """Return an error's text with the arguments named as command-line options.

    Examples
    --------
    >>> _name_options("ranks_per_vm=0: not a number of ranks.", ["ranks_per_vm"])
    '--ranks-per-vm 0: not a number of ranks.'
    """
    subject, colon, explanation = text.partition(": ")
    for name in names:
        option = f"--{name.replace('_', '-')}"
        subject = re.sub(rf"(?<![\w'-]){name}=", f"{option} ", subject)
        subject = re.sub(rf"(?<![\w'-]){name}(?= and |$)", option, subject)
    return subject + colon + explanation


def _add_build_horovod(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "build-horovod",
        help="build Horovod against the installed PyTorch, install and test it",
        description="Build Horovod against the installed PyTorch, install it, and test it "
        "with a sum over two ranks. The wheel is stored in the user's cache.",
    )
    operations = ("gloo", "nccl", "mpi", "tensorflow")
    command.add_argument(
        "--check", action="store_true", help="only report what is installed and whether it fits"
    )
    command.add_argument(
        "--with", dest="wanted", action="append", default=[], choices=operations,
        help="fail unless this operation can be built (may be repeated)",
    )  # fmt: skip
    command.add_argument(
        "--without", dest="unwanted", action="append", default=[], choices=operations,
        help="leave this operation out (may be repeated)",
    )  # fmt: skip
    command.add_argument("--rebuild", action="store_true", help="compile even if the cache has it")
    command.add_argument(
        "--jobs", type=_positive, help="parallel compilers (default: by cores and memory)"
    )
    command.set_defaults(run=_build_horovod)


def _build_horovod(arguments: argparse.Namespace) -> int:
    from workbench.horovod_build import Request, build, check

    if arguments.check:
        report = check()
        print(report.describe())
        return 0 if report.fits else 1
    request = Request(
        wanted=tuple(arguments.wanted),
        unwanted=tuple(arguments.unwanted),
        rebuild=arguments.rebuild,
        jobs=arguments.jobs,
    )
    print(build(request).describe())
    return 0


def _add_build_ddp(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "build-ddp",
        help="compile what times DDP's buckets at the lowest cost",
        description="Compile, for the installed PyTorch, what notes when "
        "DistributedDataParallel submits and finishes its buckets, and store it in the user's "
        "cache. Without it, Python notes the same, at about 15 us a bucket.",
    )
    command.add_argument("--rebuild", action="store_true", help="compile even if the cache has it")
    command.set_defaults(run=_build_ddp)


def _build_ddp(arguments: argparse.Namespace) -> int:
    from workbench.rank.backends import native_group

    path, compiled = native_group.build(rebuild=arguments.rebuild)
    print(f"{'Compiled' if compiled else 'Compiled before'}: {path}")
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive integer")
    return number


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "demo",
        help="run the quickstart notebook and print what communication cost",
        description="Run the quickstart notebook without a browser: two ranks train on this "
        "machine. Prints the summary, and writes the executed notebook as HTML.",
    )
    command.add_argument("--notebook", type=Path, help="another notebook than the quickstart")
    command.add_argument(
        "--html", type=Path, default=Path("build/quickstart.html"), help="where to write the page"
    )
    command.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from workbench.demo import NOTEBOOK, run_demo

    result = run_demo(arguments.html, arguments.notebook or NOTEBOOK)
    print(result.summary)
    print(f"\nThe executed notebook: {result.html.resolve()}")
    return 0
