"""Cells ask the user: breakpoint(), input() and getpass(), in a real kernel's front end."""

import os
import queue
import signal
import time

import pytest
from typing_user import process_of, typing_user

CALLS = {
    "horovod": "hvd.allreduce(torch.ones(1), op=hvd.Sum)",
    "ddp": "dist.all_reduce(torch.ones(1))",
}


@pytest.fixture(scope="module", params=list(CALLS))
def backend(request):
    return request.param


@pytest.fixture(scope="module")
def user(backend):
    """Two ranks, and a user who types."""
    with typing_user(f"%cluster start -n 2 --backend {backend}") as user:
        user.run("%%distributed\nimport torch")
        yield user


@pytest.fixture
def ring(user, backend):
    """A call of all ranks; after the test, the ranks have their variables and a ring."""
    user.run("%%distributed\nkept = rank * 10")
    yield CALLS[backend]
    after = user.run(f"%%distributed\nused = {CALLS[backend]}\nprint('kept', kept)")
    assert not after.error
    assert after.text == "[rank 0] kept 0\n[rank 1] kept 10\n"


def test_the_debugger_steps_through_a_cell(user, ring):
    """Each prompt has its rank, statements of a cell are stepped one by one, and c continues."""
    cell = (
        "%%distributed\ndef twice(value):\n    both = value * 2\n    return both\n"
        f"if rank == 1: breakpoint()\nseen = twice(rank)\n{ring}\nprint('seen', seen)"
    )
    done = user.run(cell, "p kept", "n", "s", "n", "n", "p both", "w", "up", "down", "r", "n", "c")
    assert set(done.prompts) == {"[rank 1] (Pdb) "}
    assert not done.error
    lines = done.text.splitlines()
    assert "[rank 1] (Pdb) p kept" in lines, "the cell keeps what was typed"
    assert lines[lines.index("[rank 1] (Pdb) p kept") + 1] == "[rank 1] 10"
    assert lines[lines.index("[rank 1] (Pdb) p both") + 1] == "[rank 1] 2"
    assert "[rank 1] > Cell(5)<module>()" in lines, "n goes to the next statement of the cell"
    assert lines[lines.index("[rank 1] (Pdb) r") + 2] == "[rank 1] > Cell(3)twice()->2"
    assert "IPython" not in done.text, "only the cell's own frames are shown"
    assert lines[-2:] == ["[rank 0] seen 0", "[rank 1] seen 2"]


def test_quit_ends_the_cell_on_its_rank(user, ring):
    """And frees the other one, which waits."""
    done = user.run(f"%%distributed\nif rank == 1: breakpoint()\n{ring}", "q")
    assert "[rank 1] BdbQuit: the debugger's quit has ended the cell on this rank" in done.error


def test_the_others_wait_for_a_rank_at_a_breakpoint(user, ring):
    """They are told for whom, are not taken for stuck, and a time limit does not count."""

    def wait_long(_user, _prompt):
        time.sleep(5)  # longer than the time limit
        return "c"

    cell = f"%%distributed --timeout 4s\nif rank == 1: breakpoint()\n{ring}\nprint('through')"
    done = user.run(cell, wait_long)
    assert not done.error
    assert "Rank 0 waits in 'all" in done.text
    assert "for rank 1, which is at a breakpoint." in done.text
    assert done.text.endswith("[ranks 0-1] through\n")


def test_several_ranks_at_a_breakpoint(user, ring):
    """One after the other, each with its label; a session is not mixed with another one."""
    done = user.run(f"%%distributed\nbreakpoint()\n{ring}\nprint('through')", *["p 1", "c"] * 2)
    first, *_ = done.prompts
    other = {"[rank 0] (Pdb) ", "[rank 1] (Pdb) "} - {first}
    assert done.prompts == [first] * 2 + [*other] * 2
    assert done.text.endswith("[ranks 0-1] through\n")


def test_input_and_getpass(user, ring):
    """A rank's input() and getpass() return what is typed; a password is not kept."""

    def answer(_user, prompt):
        return "ada" if "Name" in prompt else "secret"

    done = user.run(
        "%%distributed\nimport getpass\nname = input('Name? ')\nword = getpass.getpass()\n"
        "print(name.upper(), len(word))",
        *[answer] * 4,
    )
    assert sorted(done.prompts) == [
        *("[rank 0] Name? ", "[rank 0] Password: ", "[rank 1] Name? ", "[rank 1] Password: "),
    ]
    assert done.text.count("ADA 6") == 2
    assert "secret" not in done.text


@pytest.mark.parametrize("call", ["breakpoint()", "input()", "import pdb; pdb.set_trace()"])
def test_the_stop_button_at_a_prompt(user, ring, call):
    """It ends the prompt and the cell, on the rank that asks and on the one that waits."""
    cell = f"%%distributed\nif rank == 1: {call}\n{ring}\nprint('not reached')"
    done = user.run(cell, lambda user, _: user.interrupt())
    assert "the cell was interrupted on ranks 0-1; it was interrupted there" in done.error
    assert "not reached" not in done.text


@pytest.mark.parametrize(
    "call",
    [
        "breakpoint()",
        "import pdb; pdb.set_trace()",
        "input('?')",
        "__import__('getpass').getpass()",
    ],
)
def test_a_front_end_without_input(user, ring, call):
    """As nbconvert and papermill: a clear error at once."""
    done = user.run(f"%%distributed\n{call}", allow_stdin=False)
    assert "this front end accepts no input" in done.error
    assert len(done.error.splitlines()) == 1


def test_the_background_cannot_ask(user, ring):
    """A cell of --noblock runs while the notebook runs others."""
    user.run("%%distributed --noblock --out run\ninput()")
    done = user.run("try: run.result()\nexcept Exception as error: print(error)")
    assert "input(): the cell runs in the background" in done.text


def test_post_mortem(user, ring):
    """%debug shows where the last error of a rank was raised."""
    user.run("%%distributed\ndef fail():\n    where = rank + 7\n    1 / 0\nfail()")
    done = user.run("%%distributed --ranks 1\n%debug", "p where", "q")
    assert not done.error
    assert "[rank 1] 8" in done.text


def test_the_state_says_where_a_rank_is(user, ring):
    """The panel and %cluster show the message of the state."""
    user.run(
        "seen, cluster = [], __import__('workbench.cluster.registry', fromlist=['x']).current()\n"
        "stop = cluster.subscribe(lambda: seen.append((cluster.state, cluster.message)))"
    )
    user.run("%%distributed\nif rank == 1: breakpoint()", "c")
    shown = user.run("stop(); print(seen)").text
    assert "('running', 'Rank 1 is at a breakpoint')" in shown
    assert shown.rstrip().endswith("('ready', '')]")


def test_a_stop_shows_no_other_prompt(user, ring, tmp_path):
    """Of two ranks that wait, one is asked; a stop from elsewhere ends both."""
    shown = tmp_path / "shown"
    user.run(
        "import os, threading, time\n"
        "cluster = __import__('workbench.cluster.registry', fromlist=['x']).current()\n"
        "def stop_soon():\n"
        f"    while not os.path.exists({str(shown)!r}): time.sleep(0.02)\n"
        "    while not cluster._cells.current.prompts._requests: time.sleep(0.02)\n"
        "    cluster.interrupt()\n"
        "threading.Thread(target=stop_soon, daemon=True).start()"
    )
    done = user.run(f"%%distributed\n{ring}\ninput('Name? ')", lambda *_: shown.touch())
    with pytest.raises(queue.Empty):
        user.client.get_stdin_msg(timeout=1)
    assert len(done.prompts) == 1
    assert "the cell was interrupted on ranks 0-1" in done.error


def test_a_rank_killed_at_its_prompt(user, backend):
    """The prompt ends, with the reason."""
    killed = process_of(user, 1)
    done = user.run(
        f"%%distributed\nif rank == 1: breakpoint()\n{CALLS[backend]}",
        lambda *_: os.kill(killed, signal.SIGKILL),
    )
    assert "was killed by SIGKILL" in done.error
    assert not user.run("%cluster restart").error
    assert not user.run(f"%%distributed\nimport torch\n{CALLS[backend]}").error
