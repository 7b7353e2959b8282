"""Errors in a rank: reported soon and briefly, whatever was raised; exits and signals."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from clusters import gone, quiet
from timers import FAR_S, PROCESS_S

from workbench.cluster.threads import in_background
from workbench.errors import ClusterStopped, RanksFailed

RECURSION = """
def down(n):
    return down(n + 1)
down(0)
"""
MUTUAL = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return self(x)
Model()(torch.ones(1))
"""
CHAIN = """
def chain(n):
    try:
        chain(n - 1) if n else 1 / 0
    except Exception as error:
        raise ValueError(n) from error
chain(300)
"""
HOOK = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
def hook(*_):
    raise ValueError('in a hook')
model[1].register_full_backward_hook(hook)
model(torch.ones(2, 4)).sum().backward()
"""
GROUP = "raise ExceptionGroup('many', [ValueError(i) for i in range(1000)])"
LONG = "raise ValueError('x' * 50_000_000)"
SLOW = """
import time
from pathlib import Path
class Slow(Exception):
    def __str__(self):
        time.sleep(30)
class Other:
    def __repr__(self):
        time.sleep(30)
try:
    raise Slow
except Slow as error:
    raise KeyError(Other()) from error
"""
LOCALS = """
import time
from pathlib import Path
class Slow:
    def __repr__(self):
        time.sleep(30)
def function():
    a, b = Slow(), list(range(10_000_000))
    raise ValueError('with locals')
%xmode Verbose
function()
"""
DEEP = """
import sys
sys.setrecursionlimit(30_000)
def down(n):
    if n == 0: raise ValueError('deep')
    down(n - 1)
try:
    down(20_000)
finally:
    sys.setrecursionlimit(1_000)
"""


def failing(cluster, source):
    """Return the one error of a cell, and how long it took."""
    began = time.monotonic()
    with pytest.raises(RanksFailed) as caught:
        quiet(cluster, source, timeout=FAR_S)
    (error,) = set(caught.value.errors.values())
    return error, time.monotonic() - began, str(caught.value)


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.timing
@pytest.mark.parametrize(
    ("source", "says"),
    [
        (RECURSION, "RecursionError: maximum recursion depth exceeded"),
        (MUTUAL, "RecursionError"),
        (CHAIN, "ValueError: 300"),
        (HOOK, "ValueError: in a hook"),
        (LONG, "ValueError: xxxx"),
        (SLOW, "KeyError: <its text was not made within 2 s>"),
        (LOCALS, "ValueError: with locals"),
        (DEEP, "ValueError: deep"),
    ],
    ids=["recursion", "mutual", "chain", "hook", "long", "slow", "locals", "deep"],
)
def test_an_error_is_reported_soon_and_briefly(cluster, source, says):
    """Whatever its depth, its chain, and what its objects do when they are shown."""
    error, took_s, text = failing(cluster, source)
    assert took_s < 4
    assert says in plain(text)
    assert len(text) < 60_000
    assert text.count("\n") < 250
    if source is not LONG:
        assert "Cell line" in plain(error.traceback)


@pytest.mark.parametrize(
    "source", ["for for", "print('a'", "if True:\n  x = 1\n y = 2", 'x = """', "'open"]
)
def test_what_is_no_python_is_shown_without_anybodys_frames(cluster, source):
    """The line and what is wrong with it; neither the compiler's frames nor those of the rank."""
    error, _, text = failing(cluster, source)
    assert error.name in ("SyntaxError", "IndentationError", "_IncompleteInputError")
    assert "workbench" not in text
    assert "IPython" not in text
    assert plain(error.traceback).count("File ") == 1


@pytest.mark.parametrize(
    "source",
    [
        "!echo 'a (open' ; echo [b",
        "%%bash\necho 'a (b [c {{d'",
        "%%writefile {path}\na (text {{ of any kind\n  and\n any indent",
        "%%html\n<b>it's (open</b>",
    ],
    ids=["shell", "bash", "file", "html"],
)
def test_a_cell_that_is_no_python_runs(cluster, source, tmp_path):
    """What a magic or the shell reads needs no balanced brackets and no indentation."""
    quiet(cluster, source.format(path=tmp_path / "text"))


@pytest.mark.timing
@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no groups before Python 3.11")
def test_a_group_of_errors_is_an_error(cluster):
    """IPython only prints it: the cell had no error at all."""
    _, took_s, text = failing(cluster, GROUP)
    assert took_s < 4
    assert "ExceptionGroup: many (1000 sub-exceptions)" in plain(text)
    assert "ValueError: 0" in plain(text)
    assert "995 more errors" in text


def test_a_magic_that_does_not_exist_is_an_error(cluster):
    """IPython only prints it, as well."""
    error, _, _ = failing(cluster, "%there_is_no_such_magic")
    assert error.name == "UsageError"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("%load_ext workbench", "Use them in a cell without %%distributed."),
        ("%%distributed\n1", "not found"),
    ],
    ids=["load_ext", "distributed"],
)
def test_the_notebooks_magics_in_a_rank(cluster, source, says):
    """A beginner's mistake is reported in one line: no rank starts its own cluster."""
    error, _, text = failing(cluster, source)
    assert error.name == "UsageError"
    assert len(plain(text).splitlines()) == 1
    assert says in text


def test_a_script_that_fails_is_an_error(cluster, tmp_path):
    """`%run` shows the error of its script, and passes none on."""
    script = tmp_path / "script.py"
    script.write_text("def go():\n    1 / 0\ngo()\n")
    error, _, _ = failing(cluster, f"%run {script}")
    assert error.name == "ZeroDivisionError"
    assert f"{script}:2" in plain(error.traceback)


@pytest.mark.soak
def test_large_files_of_the_user(cluster, tmp_path):
    """The frames of several large modules: their lines are shown, and nothing is parsed."""
    body = "".join(f"def f{i}(x):\n    return [x + {i}, {{'a': x}}]\n\n" for i in range(20_000))
    for number in range(6):
        below = f"import large{number + 1}\n" if number < 5 else ""
        call = f"large{number + 1}.go(x)" if number < 5 else "1 / x"
        path = tmp_path / f"large{number}.py"
        path.write_text(f"{below}{body}def go(x):\n    return {call}\n")
    quiet(
        cluster, f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport large0", timeout=FAR_S
    )
    error, took_s, _ = failing(cluster, "large0.go(0)")
    assert took_s < 2
    assert "return large3.go(x)" in plain(error.traceback)
    assert "> 60002     return 1 / x" in plain(error.traceback)


@pytest.mark.parametrize("further", range(4))
def test_the_users_own_frames_are_shown(cluster, further):
    """Frames between them are counted; both ends and each line of the cell are there.

    Whichever function reaches the recursion limit.
    """
    limit = f"import sys\nsys.setrecursionlimit(sys.getrecursionlimit() + {further})"
    quiet(cluster, limit)
    error, _, _ = failing(cluster, MUTUAL)
    text = plain(error.traceback)
    assert re.search(r"-> \d Model\(\)\(torch.ones\(1\)\)", text)
    assert "return self(x)" in text
    assert re.search(r"\[\.\.\. \d+ frames are left out, in ", text)
    assert "workbench" not in re.sub(r"/\S*/site-packages/", "", text)


def test_what_failed_in_a_line_is_marked(cluster):
    """Of a line with several calls, the one that failed is underlined."""
    error, _, _ = failing(cluster, "def f(x): return 1 / x\nlist([f(1), f(0)])")
    if sys.version_info >= (3, 11):
        lines = plain(error.traceback).splitlines()
        place = lines.index("----> 2 list([f(1), f(0)])")
        assert lines[place + 1] == " " * lines[place].index("f(0)") + "^^^^"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("quit()", "quit() has ended the cell, not the rank"),
        ("exit()", "quit() has ended the cell, not the rank"),
        ("import sys; sys.exit(3)", "sys.exit(3) has ended the cell, not the rank"),
        ("raise SystemExit", "sys.exit() has ended the cell, not the rank"),
        ("get_ipython().ask_exit()", "has ended the cell, not the rank"),
    ],
)
def test_leaving_ends_the_cell_and_no_rank(cluster, source, says):
    """It is reported at once, in one line, and no rank ends later."""
    error, _, text = failing(cluster, f"kept = rank\nif True:\n    {source}\nkept = None")
    assert error.name == "SystemExit"
    assert says in text
    assert "%cluster stop" in text
    assert len(text.splitlines()) == 1
    time.sleep(0.5)
    assert cluster.state == "ready"
    assert cluster["kept"] == [0, 1]


def test_leaving_from_a_thread_ends_no_rank(cluster):
    """Nor does quit() in a thread that outlives its cell."""
    quiet(cluster, "import threading\nthreading.Timer(0.3, quit).start()")
    time.sleep(1)
    assert quiet(cluster, "rank").values == {0: 0, 1: 1}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize(
    "source",
    ["time.sleep(600)", "while True: pass", "hvd.allreduce(torch.ones(1)) if rank else wait()"],
    ids=["sleeps", "computes", "waits"],
)
def test_a_signal_that_ends_a_rank(cluster, name, source):
    """It ends at once, wherever it is, and its signal is named; the other keeps its variables."""
    quiet(cluster, "import time, torch\nkept = rank\ndef wait(): time.sleep(600)")
    pid = cluster.ranks[1].pid

    def send():
        time.sleep(0.7)
        os.kill(pid, getattr(signal, name))

    in_background(send)
    cell = f"if rank == 1:\n    {source}\nelse:\n    hvd.barrier()"
    with pytest.raises(RanksFailed, match=rf"rank 1.*killed by {name}"):
        quiet(cluster, cell, timeout=FAR_S)
    with pytest.raises(ClusterStopped, match=name):
        quiet(cluster, "1")
    cluster.restart()
    assert quiet(cluster, "globals().get('kept')").values == {0: 0, 1: None}


def test_an_interrupt_of_one_rank(cluster):
    """SIGINT to a rank's process: KeyboardInterrupt in its cell, and nothing between cells."""
    quiet(cluster, "import os, signal, time\nkept = rank")
    os.kill(cluster.ranks[1].pid, signal.SIGINT)
    time.sleep(0.3)
    assert quiet(cluster, "kept").values == {0: 0, 1: 1}
    cell = "if rank: os.kill(os.getpid(), signal.SIGINT); time.sleep(30)"
    with pytest.raises(RanksFailed, match="KeyboardInterrupt") as caught:
        quiet(cluster, cell, timeout=FAR_S)
    assert list(caught.value.errors) == [1]
    assert cluster["kept"] == [0, 1]


@pytest.mark.soak
@pytest.mark.parametrize("turn", [1, 2])
def test_the_kernel_ends_well_whatever_runs(turn):
    """At its exit agents, ranks and threads are ended: no abort, nothing on standard error."""
    script = """
        import workbench as wb
        from workbench.cluster import TextSink
        from workbench.errors import CellError
        cluster = wb.Cluster(n=1).start()
        source = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"
        source += "\\nwhile True: time.sleep(0.01)"
        try:
            cluster.run(source, sink=TextSink(), timeout=3)
        except CellError as error:
            print(cluster.state, cluster.ranks[0].pid, flush=True)
        with wb.Cluster(n=1) as other:
            other.run("1", sink=TextSink())
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    state, pid = done.stdout.split()
    assert state == "failed"
    assert gone([int(pid)])
