"""A saved notebook contains the output of its distributed cells, whenever the ranks wrote it."""

import time

import pytest
from kernels import start_kernel
from run_notebook import error_of, opened, text_of, values_of
from timers import eventually

from workbench.errors import COLOURS


@pytest.fixture(scope="module")
def notebook():
    with opened("%cluster start -n 3") as notebook:
        yield notebook


@pytest.mark.soak
def test_a_value_behind_a_warning_is_no_warning(notebook):
    """Text on stderr before does not send the value there, nor a figure's label."""
    cell = notebook.run('%%distributed\nimport sys\nprint("careful", file=sys.stderr)\n7')
    assert text_of(cell, "stderr") == "[ranks 0-2] careful\n"
    assert text_of(cell, "stdout") == "[ranks 0-2] 7\n"
    cell = notebook.run(
        "%%distributed\nfrom IPython.display import HTML\n"
        'print("careful", file=sys.stderr)\nHTML(f"<b>{rank}</b>")'
    )
    assert text_of(cell, "stderr") == "[ranks 0-2] careful\n"
    assert text_of(cell, "stdout") == "[rank 0]\n[rank 1]\n[rank 2]\n"


@pytest.mark.parametrize("pause", ["0", "rank * 0.4", "(2 - rank) * 0.4", "(rank * 7 % 3) * 0.3"])
def test_equal_lines_are_merged_whatever_the_timing(notebook, pause):
    """Ranks that say the same seconds apart, and their own between, give the same notebook."""
    cell = notebook.run(f"""%%distributed --out result
import time
for epoch in range(3):
    time.sleep({pause})
    print("epoch", epoch)
    print("loss", epoch + rank / 10)
""")
    said = "".join(
        f"[ranks 0-2] epoch {epoch}\n"
        + "".join(f"[rank {rank}] loss {epoch + rank / 10}\n" for rank in range(3))
        for epoch in range(3)
    )
    assert text_of(cell) == said
    assert values_of(notebook.run("print(result.output, end='')")) == ""
    assert text_of(notebook.run("print(result.output, end='')")) == said


def test_figures_keep_their_places(notebook):
    """Displays are part of the order; equal ones of late ranks are one."""
    cell = notebook.run("""%%distributed
import time
from IPython.display import HTML, display
time.sleep(rank * 0.3)
print("before")
display(HTML("<i>same</i>"))
print("after")
""")
    kinds = [output.output_type for output in cell.outputs]
    assert kinds == ["stream", "display_data", "stream"]
    assert cell.outputs[0].text == "[ranks 0-2] before\n[ranks 0-2]\n"
    assert cell.outputs[2].text == "[ranks 0-2] after\n"


def test_other_output_of_a_cell_stays(notebook):
    """A cell that calls `Cluster.run` among prints of its own keeps these."""
    cell = notebook.run(
        "from workbench.cluster import registry\nprint('mine')\n"
        "result = registry.current().run('import time; time.sleep(rank * 0.4); print(1)')\n"
        "print('mine too')"
    )
    assert text_of(cell).startswith("mine\n")
    assert text_of(cell).endswith("mine too\n")
    assert text_of(notebook.run("print(result.output, end='')")) == "[ranks 0-2] 1\n"


@pytest.mark.soak
def test_a_cell_in_the_background_settles_too():
    """--noblock: the cell's own output is put in order when it ends."""
    manager, client = start_kernel()
    text, clears = "", False

    def take():
        nonlocal text, clears
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") == cell:
            if message["msg_type"] == "clear_output":
                clears = True
            elif message["msg_type"] == "stream":
                text, clears = ("" if clears else text) + message["content"]["text"], False

    try:
        client.execute_interactive("%load_ext workbench\n%cluster start -n 3", timeout=60)
        cell = client.execute(
            "%%distributed --noblock --out later\n"
            "import time\ntime.sleep(rank * 0.4)\nprint('late'); print(rank)"
        )
        said = "[ranks 0-2] late\n[rank 0] 0\n[rank 1] 1\n[rank 2] 2\n"
        until = time.monotonic() + 60
        while text != said and time.monotonic() < until:
            take()
        assert text == said
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


@pytest.mark.soak
def test_a_flood_stays_out_of_the_notebook(notebook):
    """100,000 lines of each rank: the beginning and the end are shown, the result has all."""
    cell = notebook.run("%%distributed\nfor at in range(100_000): print('line', at)")
    text = text_of(cell)
    assert len(text) < 100_000
    lines = text.splitlines()
    assert lines[0] == "[ranks 0-2] line 0"
    assert lines[-1] == "[ranks 0-2] line 99999"
    (note,) = [line for line in lines if line.startswith("...")]
    assert "99,000 of 100,000 lines" in note
    count = notebook.run("len(_distributed.output.splitlines())")
    assert values_of(count) == "100000"


@pytest.mark.soak
def test_a_flood_on_both_streams_and_long_lines(notebook):
    """Streams that alternate, and a line without end, are bounded as well."""
    cell = notebook.run("""%%distributed
import sys
for at in range(20_000):
    print('out', at)
    print('err', at, file=sys.stderr)
print('x' * 5_000_000)
""")
    assert sum(len(output.text) for output in cell.outputs) < 500_000
    assert len(cell.outputs) < 1500
    assert "characters are not shown here" in text_of(cell)


@pytest.mark.parametrize(
    "text", ["'x' * 5_000_000", "'line\\n' * 1_000_000"], ids=["line", "lines"]
)
def test_a_value_that_is_too_long(notebook, text):
    """The text of a value is bounded as printed lines are; the result has all of it."""
    cell = notebook.run(f"""%%distributed --ranks 0
class Long:
    def __repr__(self): return {text}
Long()
""")
    assert len(str(cell.outputs)) < 500_000
    assert "characters are not shown here" in str(cell.outputs)
    assert values_of(notebook.run("len(_distributed.output) > 5_000_000")) == "True"


def test_a_flood_of_figures(notebook):
    """Figures beyond a hundred are counted, not sent."""
    cell = notebook.run(
        "%%distributed --ranks 0\nfrom IPython.display import HTML, display\n"
        "for at in range(300): display(HTML(f'{at}'))"
    )
    shown = [output for output in cell.outputs if output.output_type == "display_data"]
    assert len(shown) == 100
    assert "not shown" in text_of(cell)


def test_a_failed_cell_keeps_its_text(notebook):
    """The text of a cell that raised is kept too, though the notebook shows a part."""
    cell = notebook.run("%%distributed\nfor at in range(5000): print(at)\n1/0")
    assert "ZeroDivisionError" in error_of(cell)
    assert len(text_of(cell).splitlines()) < 1100
    assert values_of(notebook.run("len(_distributed.output.splitlines())")) == "5000"


def test_a_progress_bar_is_its_last_state(notebook):
    """Text that a carriage return overwrites does not count against the lines that are shown."""
    cell = notebook.run(
        "%%distributed\nfor at in range(5000): print(f'{at} of 5000', end='\\r')\nprint('done')"
    )
    assert text_of(cell).splitlines()[-1] == "[ranks 0-2] done"
    assert len(text_of(cell)) < 200


def test_the_result_shows_its_values(notebook):
    """A result's repr has the values, each cut where it is long."""
    notebook.run("%%distributed --out result\n[rank] * (1 if rank else 10_000)")
    shown = values_of(notebook.run("result"))
    assert "1: [1], 2: [2]" in shown
    assert "characters ..." in shown
    assert len(shown) < 2000


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("?area", ["[ranks 0-2] Signature: area(width: float) -> float"]),
        (
            "area?",
            ["[ranks 0-2] Docstring: The area of a square.", "[ranks 0-2] File:      a cell"],
        ),
        ("area??", ["[ranks 0-2]     return width**2"]),
        ("mine?", ["[ranks 0-2] Type:        int", "[rank 1] String form: 1"]),
        ("nothing?", ["[ranks 0-2] Object `nothing` not found."]),
        ("*Overflow*?", ["[ranks 0-2] OverflowError"]),
    ],
)
def test_help_in_a_rank(notebook, source, lines):
    """It is shown once where it is equal on the ranks, and with its ranks where they differ."""
    notebook.run(
        "%%distributed\ndef area(width: float) -> float:\n    'The area of a square.'\n"
        "    return width**2\nmine = rank"
    )
    shown = COLOURS.sub("", text_of(notebook.run(f"%%distributed\n{source}"))).splitlines()
    assert set(lines) <= {line.rstrip() for line in shown}
    assert len(shown) < 20


NOTED = """
def note(thread):
    thread.join()
    open(f{mark!r}, "w").close()
threading.Thread(target=note, args=[thread]).start()
"""
"""A file for each rank says that its thread has ended."""
WAITS = """
import os, threading, time
def wait_for_the_cells_end():
    while not os.path.exists({mark!r}):
        time.sleep(0.02)
"""
"""Defines a function of a thread, which waits for the file that a test makes after the cell."""


def test_a_thread_prints_on_after_its_cell(notebook, tmp_path):
    """Its text, and the error that ends it, open the output of the next cell."""
    ended = tmp_path / "ended"
    notebook.run(
        "%%distributed"
        + WAITS.format(mark=str(ended))
        + """
def late():
    wait_for_the_cells_end()
    print("printed late")
    raise ValueError("raised late")
thread = threading.Thread(target=late)
thread.start()
"""
        + NOTED.format(mark=f"{tmp_path}/{{rank}}")
    )
    ended.touch()
    assert eventually(lambda: len(list(tmp_path.glob("[0-9]"))) == 3)
    cell = notebook.run("%%distributed\nprint('next')")
    assert text_of(cell, "stdout") == "[ranks 0-2] printed late\n[ranks 0-2] next\n"
    assert "ValueError: raised late" in text_of(cell, "stderr")


def test_a_thread_that_prints_without_end_between_cells(notebook, tmp_path):
    """A part of it is kept."""
    ended = tmp_path / "ended"
    notebook.run(
        "%%distributed --ranks 0 --out result"
        + WAITS.format(mark=str(ended))
        + """
def chatter():
    wait_for_the_cells_end()
    for at in range(1000):
        print(f"{at:03}" + "x" * 10_000)
thread = threading.Thread(target=chatter)
thread.start()
"""
        + NOTED.format(mark=f"{tmp_path}/{{rank}}")
    )
    ended.touch()
    assert eventually(lambda: list(tmp_path.glob("[0-9]")))
    cell = notebook.run("%%distributed --ranks 0 --out result\nprint('next')")
    assert text_of(cell, "stdout").endswith("[rank 0] next\n")
    assert "is left out" in text_of(cell, "stderr")
    assert values_of(notebook.run("len(result.output) < 2_000_000")) == "True"


def test_an_object_that_shows_itself_is_shown_once(notebook):
    """Its `_ipython_display_` has done it: there is no empty output, with a label, behind it."""
    cell = notebook.run("""%%distributed
class Own:
    def _ipython_display_(self):
        print("shown")
Own()
""")
    assert [(one.output_type, one.text) for one in cell.outputs] == [
        ("stream", "[ranks 0-2] shown\n")
    ]
