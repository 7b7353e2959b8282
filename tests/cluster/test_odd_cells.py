"""Cells that break their process, odd names, and errors that quote them."""

import io
import json
import os
import resource
import subprocess
import sys

import pytest
from clusters import quiet, training
from test_stop_button import ASK
from timers import FAR_S, eventually

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import (
    CellTimeout,
    NoCluster,
    RanksFailed,
    RunError,
    SnapshotError,
    UsageError,
)
from workbench.safefiles import write_regular

BREAKS = {
    "a recursion limit": ("import sys; sys.setrecursionlimit(50)", "recursion limit from 50"),
    "no stdout": ("import sys; sys.stdout = sys.stderr = sys.__stdout__ = None", ""),
    "a folder that is gone": (
        "import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
        "",
    ),
    "no print": ("import builtins; builtins.print = None", "builtins.print"),
    "other builtins": (
        "import builtins; builtins.repr = None; builtins.str = int; del builtins.open",
        "builtins.str",
    ),
    "an ignored SIGINT": ("import signal; _ = signal.signal(signal.SIGINT, signal.SIG_IGN)", ""),
    "a blocked SIGINT": (
        "import signal; _ = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})",
        "the blocked signal SIGINT",
    ),
    "a locale": ("import locale; _ = locale.setlocale(locale.LC_ALL, 'C')", ""),
    "closed outputs": ("import os; os.close(1); os.close(2)", ""),
    "no input": ("import os; os.close(0)", ""),
    "all closed": ("import os; os.closerange(0, 3)", ""),
    "few files": (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (20, r.getrlimit(r.RLIMIT_NOFILE)[1]))",
        "the limit of open files from 20",
    ),
    "few files for good": (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))",
        "The limit of open files: 200, and only a privileged process can raise it again. If later",
    ),
    "no names of ours": ("del hvd, rank, local_rank, world_size, device", ""),
}


@pytest.mark.parametrize("name", BREAKS)
def test_the_cells_after_it_work(cluster, name):
    """They print, train, fail and are interrupted as before; one line lists what was reset."""
    source, says = BREAKS[name]
    sink = TextSink()
    cluster.run(f"kept = rank * 10\n{source}", sink=sink)
    if says:
        assert says in sink.text
        assert len(sink.text.splitlines()) == 1
    else:
        assert sink.text == ""
    assert quiet(cluster, "print('hello'); 7").output == "[ranks 0-1] hello\n[ranks 0-1] 7\n"
    assert quiet(cluster, ASK).values == {0: (0, 2.0), 1: (10, 2.0)}
    with pytest.raises(RanksFailed, match="ZeroDivisionError: division by zero"):
        quiet(cluster, "1/0")
    with pytest.raises(CellTimeout, match="variables are kept"):
        quiet(cluster, "import time; time.sleep(600)", timeout=0.5)
    cluster.push({"pushed": 3})
    assert cluster["pushed"] == [3, 3]


def test_what_a_cell_finds_is_there_after_a_reset(cluster):
    """`%reset` deletes what cells have defined; a name that a cell has redefined stays its own."""
    quiet(cluster, "import os; os.chdir('/')\n%reset -f")  # IPython's own needs a folder
    names = "(rank, local_rank, world_size, str(device), hvd.size())"
    assert quiet(cluster, names).values == {0: (0, 0, 2, "cpu", 2), 1: (1, 1, 2, "cpu", 2)}
    quiet(cluster, "device = 'mine'")
    assert quiet(cluster, "device").values == {0: "mine", 1: "mine"}
    quiet(cluster, "del device")


@pytest.mark.parametrize(
    ("end", "status"), [("", 0), ("import sys; sys.exit(7)", 7), ("1 / 0", 1), ("quit()", 1)]
)
def test_a_forked_process_ends_with_its_cell(cluster, end, status):
    """A child that does not exit by os._exit() must not continue as a second rank."""
    source = f"""
import os
child = os.fork()
if child == 0:
    {end or "pass"}
else:
    child_status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    sink = TextSink()
    cluster.run(source, sink=sink, timeout=20)
    assert cluster["child_status"] == [status, status]
    assert ("ZeroDivisionError" in sink.text) == (end == "1 / 0")
    quiet(cluster, "import torch")
    assert quiet(cluster, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))").values[0] == 2


def test_an_interrupt_leaves_no_gradients_off(cluster):
    """As one within `no_grad`'s own code would; what an earlier cell has set stays."""
    off = "import time, torch; _ = torch.set_grad_enabled(False)"
    off += "\ntorch.set_autocast_enabled('cpu', True)"
    modes = "import torch; torch.is_grad_enabled(), torch.is_autocast_enabled('cpu')"
    with pytest.raises(CellTimeout):
        quiet(cluster, f"{off}\ntime.sleep(600)", timeout=0.5)
    assert quiet(cluster, modes).values == {0: (True, False), 1: (True, False)}
    quiet(cluster, off)
    with pytest.raises(CellTimeout):
        quiet(cluster, "time.sleep(600)", timeout=0.5)
    assert quiet(cluster, modes).values == {0: (False, True), 1: (False, True)}
    on = "_ = torch.set_grad_enabled(True)\ntorch.set_autocast_enabled('cpu', False)"
    assert quiet(cluster, f"{on}\n{modes}").values == {0: (True, False), 1: (True, False)}


def test_a_print_of_the_users_stays(cluster):
    """A builtin that was replaced by another function is what the user wants."""
    source = "import builtins; usual = print; builtins.print = lambda *a: usual('mine', *a)"
    assert quiet(cluster, source).output == ""
    assert quiet(cluster, "print(1)").output == "[ranks 0-1] mine 1\n"
    quiet(cluster, "builtins.print = usual")


@pytest.mark.parametrize("source", ["%%time\nx = = 3", "%timeit x = = 3", "x = = 3", "return 3"])
def test_a_syntax_error_shows_no_frame_of_ipythons(cluster, source):
    """Only the line that is wrong."""
    with pytest.raises(RanksFailed, match="SyntaxError") as caught:
        quiet(cluster, source)
    assert "compilerop" not in str(caught.value)
    assert "site-packages" not in str(caught.value)


@pytest.mark.parametrize("what", ["SystemExit(3)", "SystemExit", "GeneratorExit"])
def test_what_would_end_a_process_is_a_pickling_error(cluster, what):
    """In %pull on the ranks, in %push here, and in a cell's last value."""
    defines = f"class Leaves:\n    def __reduce__(self): raise {what}\nleaves = Leaves()"
    quiet(cluster, defines)
    name = what.partition("(")[0]
    with pytest.raises(UsageError, match=f"'leaves' on ranks 0-1 .*cannot be pickled.*{name}"):
        cluster.pull("leaves")
    assert f"cannot be pickled: {'3' if '(' in what else name}" in repr(
        quiet(cluster, "leaves").values[0]
    )
    names = {}
    exec(defines, names)
    with pytest.raises(UsageError, match=f"leaves.*{name}"):
        cluster.push({"leaves": names["leaves"]})
    reads = f"class Reads:\n    def __reduce__(self): return (leave, ())\ndef leave(): raise {what}"
    exec(reads, names)
    quiet(cluster, f"{reads}\nreads = Reads()")
    assert quiet(cluster, "1").values == {0: 1, 1: 1}


def test_a_newline_in_a_files_name(tmp_path):
    """It is escaped: an error about a file stays one line."""
    path = tmp_path / "a\nb.json"
    path.write_text("{")
    for load in (wb.Snapshot.load, wb.Snapshot.from_nccl_topology):
        with pytest.raises(SnapshotError) as caught:
            load(path)
        assert "\n" not in str(caught.value)
        assert r"a\nb.json" in str(caught.value)
    with pytest.raises(RunError) as caught:
        wb.open_run(path)
    assert "\n" not in str(caught.value)
    for command in ("resources", "doctor"):
        done = subprocess.run(
            [sys.executable, "-m", "workbench", command, str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode
        assert len(done.stderr.splitlines()) == 1


LONG = "x" * 20_000


@pytest.mark.parametrize(
    "call",
    [
        lambda cluster: cluster.run("1", ranks=LONG),
        lambda cluster: cluster.run("1", timeout=LONG),
        lambda cluster: cluster.resize(LONG),
        lambda cluster: cluster.pull(LONG),
        lambda cluster: wb.Cluster(hosts=f"{LONG}:x"),
        lambda cluster: wb.Cluster(n=LONG),
        lambda cluster: wb.Cluster(n=1, keep=LONG),
        lambda cluster: wb.Cluster.attach(LONG),
        lambda cluster: wb.open_run(LONG),
        lambda cluster: wb.Snapshot.load(LONG),
        lambda cluster: cluster.timings.to_arrow(LONG),
    ],
)
def test_a_long_argument_is_quoted_in_part(cluster, call):
    """Its beginning and what is wrong with it are there, its middle is not."""
    with pytest.raises((UsageError, NoCluster, RunError, SnapshotError)) as caught:
        call(cluster)
    assert len(str(caught.value)) < 1500
    assert "characters ..." in str(caught.value) or "..." in str(caught.value)


def test_a_topology_is_written_to_a_file_only(tmp_path):
    """A pipe that nobody reads, a folder and a device are refused; old files are replaced.

    They keep their permissions, and their content if the new one cannot be written in full.
    """
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, "/dev/zero", "/dev/null", "a\0b"):
        with pytest.raises(OSError, match=r"a pipe|directory|a device|not a valid path"):
            write_regular(path, "text")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="a pipe, not a file"):
        write_regular(pipe, "text")
    os.close(reader)
    path = tmp_path / "topology.xml"
    for text in ("a longer text", "short"):
        write_regular(path, text)
        assert path.read_text() == text
    path.chmod(0o640)
    link = tmp_path / "link.xml"
    link.symlink_to(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_regular(link, "x" * (1 << 17))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "short"
    write_regular(link, "other")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("other", 0o640)
    assert {one.name for one in tmp_path.iterdir()} == {"pipe", "topology.xml", "link.xml"}


def test_errors_say_what_is_wrong_and_what_to_do(cluster, tmp_path):
    """Errors of exports and runs name the argument, the problem, and the remedy."""
    quiet(cluster, training(3))
    timings = cluster.timings
    for call, says in (
        (
            lambda: timings.to_arrow("rows"),
            r"to_arrow\('rows'\): no such table. Write 'iterations'",
        ),
        (lambda: timings.to_trace(tmp_path / "no" / "x.json"), "does not exist. Create it, or"),
        (
            lambda: timings.to_trace(tmp_path / "x.json", iterations=(70_000, 70_010)),
            "=70000, 70010: .* Choose",
        ),
        (lambda: wb.open_run("nowhere"), "run 'nowhere': there is no such run.*%timings list"),
        (lambda: wb.open_run(tmp_path), "the folder .* is empty. The newest run in"),
    ):
        with pytest.raises((UsageError, RunError), match=says) as caught:
            call()
        assert "asked" not in str(caught.value)


def test_a_library_that_prints_much_and_keeps_the_gil(cluster):
    """As an extension in C++ does that prints its progress; nobody can read meanwhile."""
    write = "ctypes.PyDLL(None).write(1, b'x' * 500_000 + b'\\n', 500_001)"
    result = quiet(cluster, f"import ctypes\n{write}", timeout=FAR_S)
    assert result.values == {0: 500_001, 1: 500_001}
    assert result.output.count("x") >= 500_000


def test_a_script_that_parses_its_options_gets_its_defaults(cluster):
    """Not the options of the process that runs the cell."""
    parses = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.parse_args().lr"""
    assert quiet(cluster, parses).values == {0: 0.1, 1: 0.1}


def test_an_error_in_a_log_has_no_escape_sequences(cluster):
    """A notebook shows the same text in colours."""
    with pytest.raises(RanksFailed) as caught:
        quiet(cluster, "1 / 0")
    assert "1 / 0" in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert "\x1b[" in "\n".join(caught.value._render_traceback_())


@pytest.mark.parametrize("error", ["ValueError", "KeyboardInterrupt", "OSError"])
def test_a_signal_handler_that_raises_between_cells(cluster, tmp_path, error):
    """The alarm of a cell that has ended costs no variables, however often it comes."""
    ended, done = tmp_path / "ended", tmp_path / "done"
    source = f"""
import os, pathlib, signal, threading, time
kept, count = rank * 10, 0
def late(*_):
    global count
    count += 1
    raise {error}("late")
def send_alarms():
    while not os.path.exists({str(ended)!r}):
        time.sleep(0.02)
    for sent in range(5):
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGALRM)
        while count <= sent:
            time.sleep(0.02)
    pathlib.Path({str(done)!r}).touch()
if rank == 1:
    signal.signal(signal.SIGALRM, late)
    threading.Thread(target=send_alarms, daemon=True).start()"""
    quiet(cluster, source)
    ended.touch()
    assert eventually(lambda: done.exists() or cluster.state == "failed")
    assert quiet(cluster, ASK).values == {0: (0, 2.0), 1: (10, 2.0)}
    quiet(cluster, "signal.signal(signal.SIGALRM, signal.SIG_DFL)")


def test_lone_surrogates_do_not_hide_an_error_or_a_display(cluster):
    """No notebook can show them: the error, or all that follows, would be lost."""
    with pytest.raises(RanksFailed, match=r"ValueError: \\ud800x") as caught:
        quiet(cluster, "raise ValueError('\\ud800x')")
    str(caught.value).encode()
    "\n".join(caught.value._render_traceback_()).encode()
    seen = []

    class Displays(TextSink):
        def put(self, merged):
            seen.append(merged.item.bundle)

    shows = "from IPython.display import HTML, display\ndisplay(HTML('<b>\\ud800</b>'))"
    cluster.run(shows, sink=Displays())
    (bundle,) = filter(None, seen)
    assert json.loads(bundle)["data"]["text/html"] == "<b>?</b>"


def test_a_terminal_that_cannot_show_a_character(cluster, monkeypatch):
    """A script in another locale shows its escape sequence, as in an error of Python."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert cluster.run("print('caf\u00e9', rank)\nrank").values == {0: 0, 1: 1}
    sys.stdout.flush()
    assert b"[rank 1] caf\\xe9 1\n" in written.getvalue()


def test_a_sink_that_raises(cluster):
    """The cell is stopped, because nobody sees what it does; the next one runs."""

    class Full(TextSink):
        def put(self, merged):
            raise OSError(28, "No space left on device")

    source = "kept = rank\nwhile True: print(float(hvd.allreduce(torch.ones(1))))"
    with pytest.raises(OSError, match="No space left"):
        cluster.run(f"import torch\n{source}", sink=Full(), timeout=FAR_S)
    assert cluster.state == "ready"
    assert quiet(cluster, ASK).values == {0: (0, 2.0), 1: (1, 2.0)}
