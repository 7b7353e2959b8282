"""Lines of the magics, of any words: a result, or an error of this package that can be printed.

The lines run without a cluster, in a folder and a home of their own, and name no host that could
be reached.
"""

from __future__ import annotations

import shlex

import pytest
from hostile import controls
from hypothesis import assume, example, given
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from random_inputs import one_in
from recorded_training import Training
from timers import eventually

import workbench as wb
from workbench.cluster.start_options import START_OPTIONS, arguments, start_line
from workbench.errors import NoCluster, UsageError, WorkbenchError
from workbench.fabric_magics import FabricMagics
from workbench.magic_line import parse_line
from workbench.magics import WorkbenchMagics
from workbench.scalars import log  # noqa: F401 - loaded before the folder changes

RUN = "20260101-000000-local-1"
WORDS = st.sampled_from(
    ("live", "summary", "table", "waterfall", "ranks", "collectives", "list", "open", "compare",
     "replay", "profile", "on", "off", "overhead", "status", "stop", "restart", "interrupt",
     "resize", "bundle", "show", "calibrate", "matrix", "whatif", "scaling", "use", RUN,
     "snapshot.json", "notes.txt", "nothing.json", "folder", "0", "-1", "3", "5s", "20",
     "iterations", "99999999999999999999", "1e999", "nan", "0,2-3", "2-0", "--ranks", "--timeout",
     "--noblock", "--out", "--pairs", "--speed", "--days", "--latest", "--all", "--sample",
     "--seconds", "--stored", "--label", "--gbps", "--repeats", "--save", "--name", "-n",
     "--no-record", "--unknown", "--", "-", "=", '"', "'", "''", '""', "a b", "$HOME", "{x}", "%",
     "\\", "\0", "\x1b[2J", "\u202e", "\ud800", "²", "٣", "é")
)  # fmt: skip
LINES = st.lists(WORDS | st.text(max_size=5), max_size=5).map(" ".join)
MAGICS = ("cluster", "timings", "fabric", "explain", "resources", "doctor", "push", "pull")
SLOW = {"resources", "doctor"}
"""They take a snapshot of this machine if the line names no file."""


@pytest.fixture(scope="module")
def magics(tmp_path_factory):
    """The magics, in a folder with a run, a snapshot and other files."""
    folder = tmp_path_factory.mktemp("lines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIENT_WORKBENCH_RUNS", str(folder / "runs"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("XDG_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("HOME", str(folder))
        patch.chdir(folder)
        training = Training()
        training.train(4)
        training.close()
        assert eventually(lambda: wb.open_run(training.timings.path).state == "ended")
        training.timings.path.rename(folder / "runs" / RUN)
        (folder / "snapshot.json").write_text(wb.take_snapshot().to_json())
        (folder / "notes.txt").write_text("no snapshot")
        (folder / "folder").mkdir()
        shell = InteractiveShell()
        shell.user_ns["x"] = 1
        yield {
            name: getattr(group, name)
            for group, names in ((WorkbenchMagics(shell), MAGICS), (FabricMagics(shell), MAGICS))
            for name in ("distributed", *names)
            if hasattr(group, name)
        }


def refused_or_shown(run):
    """Run it; what it returns can be shown."""
    try:
        shown = repr(run())
    except WorkbenchError as error:
        shown = str(error)
        assert shown
        assert len(shown) < 1_500
    assert controls(shown) == set()
    shown.encode()


@given(st.sampled_from(MAGICS), LINES)
@example("timings", "open " + "a" * 3_000)
@example("timings", "waterfall 99999999999999999999999")
@example("timings", f"replay {RUN} --speed nan")
@example("fabric", "show folder")
@example("explain", "--latest 0")
def test_any_line(magics, name, line):
    words = line.split()
    assume(name != "cluster" or not {"start", "attach"} & set(words))  # both would start processes
    assume(name not in SLOW or (words and "json" in words[0]))
    assume("--h" not in line)  # of hosts, also shortened
    refused_or_shown(lambda: magics[name](line))


@one_in(3)
@given(LINES, st.text(max_size=10))
def test_any_cell(magics, line, cell):
    """Without a cluster no cell runs: %%distributed and %%timings overhead say so."""
    with pytest.raises((UsageError, NoCluster)):
        magics["distributed"](line, cell)
    refused_or_shown(lambda: magics["timings"](line, cell))
    assume("--h" not in line)
    refused_or_shown(lambda: magics["fabric"](line, cell))


VALUES = st.one_of(
    st.sampled_from(
        ("2", "0", "-1", "vm1:2", "vm1:0", "", "local", "ssh", "mpi", "slurm", "existing", "ddp",
         "horovod", "30m", "1h30m", "30", "5x", "nan", "1e999", "folder", "notes.txt", "default",
         "a b", '"', "--bind-to none", "$(x)", "-oProxyCommand=x", "\0", "\ud800", "²")
    ),
    st.text(max_size=6),
)  # fmt: skip
STARTS = st.dictionaries(st.sampled_from([one.flag for one in START_OPTIONS]), VALUES, max_size=4)


@given(STARTS)
def test_any_options_of_a_start(magics, options):
    """They make a cluster, which is not started here, or one error."""
    line = " ".join(["start", *(f"{key} {shlex.quote(value)}" for key, value in options.items())])

    def make():
        args = parse_line(magics["cluster"], line)
        given_ = arguments({one.name: getattr(args, one.name) for one in START_OPTIONS})
        return wb.Cluster(record=not args.no_record, **given_)

    refused_or_shown(make)


@given(st.fixed_dictionaries({}, optional={one.name: VALUES for one in START_OPTIONS}))
def test_a_line_that_a_form_makes_is_read_as_its_values(magics, given_):
    numbers = {one.name for one in START_OPTIONS if one.is_number}
    given_ = {
        name: int(value) if name in numbers else value
        for name, value in given_.items()
        if name not in numbers or (value.isascii() and value.isdigit())
    }
    line = start_line(given_)
    if line is None:
        assert any("\n" in str(one) or not str(one).isprintable() or {"'", '"'} <= set(str(one))
                   for one in given_.values())  # fmt: skip
        return
    args = parse_line(magics["cluster"], line.removeprefix("%cluster "))
    read = {one.name: getattr(args, one.name) for one in START_OPTIONS}
    assert {name: value for name, value in read.items() if value is not None} == given_
