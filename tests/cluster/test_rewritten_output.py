"""Cells that clear their output, or update a display: progress as notebooks show it."""

import re

import pytest
from run_notebook import opened, text_of

CLEAR = "%%distributed\nfrom IPython.display import clear_output, display, update_display, HTML\n"


@pytest.fixture(scope="module")
def notebook():
    with opened("%cluster start -n 2") as notebook:
        yield notebook


def htmls(cell):
    """The HTML of each display, in order."""
    return [one.data["text/html"] for one in cell.outputs if one.output_type == "display_data"]


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("pause", ["0", "0.05", "rank * 0.05"])
def test_a_progress_loop_shows_its_last_state(notebook, wait, pause):
    """Its last lines and figure are in the notebook; the result's text has all of them."""
    cell = notebook.run(f"""%%distributed --out result
import time
from IPython.display import clear_output, display, HTML
for epoch in range(10):
    clear_output(wait={wait})
    print("epoch", epoch)
    print("loss", epoch + rank)
    display(HTML(f"<b>{{epoch}}</b>"))
    time.sleep({pause})
""")
    assert text_of(cell) == (
        "[ranks 0-1] epoch 9\n[rank 0] loss 9\n[rank 1] loss 10\n[ranks 0-1]\n"
    )
    assert htmls(cell) == ["<b>9</b>"]
    text = text_of(notebook.run("print(result.output, end='')"))
    assert [int(n) for n in re.findall(r"\[ranks 0-1\] epoch (\d)\n", text)] == list(range(10))


def test_each_rank_clears_its_own_output(notebook):
    """What the other ranks have printed stays, under their labels, and so do their figures."""
    cell = notebook.run(
        CLEAR
        + """
print("both")
print("own", rank)
display(HTML("<i>both</i>"))
if rank == 1:
    clear_output()
    print("after")
"""
    )
    assert text_of(cell) == "[rank 0] both\n[rank 0] own 0\n[rank 0]\n[rank 1] after\n"
    assert htmls(cell) == ["<i>both</i>"]


def test_nothing_is_left_of_a_cell_that_clears_all(notebook):
    """At once; with `wait`, only when something else is shown."""
    assert text_of(notebook.run(CLEAR + "print(1)\nclear_output()")) == ""
    assert text_of(notebook.run(CLEAR + "print(1)\nclear_output(wait=True)")) == "[ranks 0-1] 1\n"


def test_long_output_is_cleared_too(notebook):
    """Also the lines that were left out, and their number."""
    cell = notebook.run(
        CLEAR
        + """
for i in range(5000): print("line", i)
if rank == 0: clear_output()
print("end")
"""
    )
    said = text_of(cell)
    assert "... 4,001 of 5,001 lines are not shown here" in said
    assert "[ranks" not in said.replace("[ranks 0-1] end", "")
    cell = notebook.run(CLEAR + 'for i in range(5000): print(i)\nclear_output()\nprint("end")')
    assert text_of(cell) == "[ranks 0-1] end\n"


@pytest.mark.parametrize("name", ["True", "'mine'"])
def test_an_updated_display_keeps_its_place(notebook, name):
    """Handles update it too; equal displays of the ranks stay one, others are shown by rank."""
    cell = notebook.run(
        CLEAR
        + f"""
handle = display(HTML("first"), display_id={name})
print("between")
for i in range(20): handle.update(HTML(f"<b>{{i}}</b>"))
update_display(HTML("<b>last</b>"), display_id=handle.display_id)
"""
    )
    assert text_of(cell) == "[ranks 0-1]\n[ranks 0-1] between\n"
    assert [one.output_type for one in cell.outputs] == ["stream", "display_data", "stream"]
    assert htmls(cell) == ["<b>last</b>"]
    cell = notebook.run(
        CLEAR
        + f"""
handle = display(HTML("first"), display_id={name})
print("between")
if rank: handle.update(HTML("<b>own</b>"))
"""
    )
    assert htmls(cell) == ["first", "<b>own</b>"]
    assert text_of(cell) == "[rank 0]\n[rank 1]\n[ranks 0-1] between\n"


def test_a_display_that_is_shown_twice(notebook):
    """Both places of the same id are updated, as without ranks."""
    cell = notebook.run(
        CLEAR
        + """
handle = display(HTML("first"), display_id="twice")
print("between")
display(HTML("first"), display_id="twice")
handle.update(HTML("second"))
"""
    )
    assert htmls(cell) == ["second", "second"]


def test_a_long_line_stays_as_it_was_shortened(notebook):
    """How much of it is not shown is counted once, also if another rank clears its output."""
    print_it = "if rank: print('x' * 60_000)\n"
    left = text_of(notebook.run(CLEAR + print_it))
    assert "characters are not shown here" in left
    cell = notebook.run(CLEAR + print_it + "else: print('gone'); clear_output()\nprint('end')")
    assert text_of(cell) == left + "[ranks 0-1] end\n"


def test_a_display_of_an_earlier_cell(notebook):
    """It is shown again: its cell has ended."""
    notebook.run(CLEAR + 'handle = display(HTML("first"), display_id=True)')
    cell = notebook.run('%%distributed\nhandle.update(HTML("second"))')
    assert htmls(cell) == ["second"]


def test_a_cell_that_calls_run(notebook):
    """Other output of the cell stays; a display is updated where it is, and nothing is cleared."""
    cell = notebook.run('''
from workbench.cluster import registry
print("mine")
result = registry.current().run("""
from IPython.display import clear_output, display, HTML
print("progress")
clear_output()
handle = display(HTML("first"), display_id=True)
handle.update(HTML("second"))
""")
''')
    assert text_of(cell) == "mine\n[ranks 0-1] progress\n[ranks 0-1]\n"
    assert htmls(cell) == ["second"]
