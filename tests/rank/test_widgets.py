"""Widgets, rich and display handles in a rank are shown, as displays or text, and end no cell."""

import pytest
from clusters import quiet
from levels import in_soak

from workbench.errors import COLOURS, RanksFailed

OUTPUT = "import ipywidgets; from IPython.display import display\nout = ipywidgets.Output()\n"


def test_an_output_widget_shows_what_it_contains(cluster):
    """Text and displays inside are in its place; the code after it goes on."""
    shown = quiet(
        cluster,
        OUTPUT
        + "display(out)\nprint('before')\nwith out:\n    print('inside'); display({'a': 1})\n"
        "print('after', 1 + 1)",
    ).output
    assert shown.startswith("[ranks 0-1] before\n")
    assert "inside\n{'a': 1}\n" in shown
    assert "[ranks 0-1] after 2\n" in shown


def test_clearing_an_output_widget_keeps_the_rest(cluster):
    """It removes what the widget contains, and nothing that the cell has printed."""
    code = OUTPUT + "print('epoch 1')\ndisplay(out)\nwith out: print('old')\n"
    shown = quiet(cluster, code + "out.clear_output()\nout.append_stdout('new')").output
    assert '"clear"' not in shown
    assert shown.startswith("[ranks 0-1] epoch 1\n")
    assert shown.rstrip().endswith("new")


def test_an_error_in_an_output_widget_is_shown_and_the_cell_goes_on(cluster):
    """As in a notebook."""
    code = OUTPUT + "with out: raise ValueError('inside')\nprint('goes on')"
    shown = quiet(cluster, code).output
    assert "ValueError: inside" in COLOURS.sub("", shown)
    assert "[ranks 0-1] goes on" in shown


def test_a_container_shows_the_output_widgets_in_it(cluster):
    """Of the other widgets in it, the text."""
    code = OUTPUT + "display(ipywidgets.VBox([ipywidgets.Label('title'), out]))\n"
    shown = quiet(cluster, code + "with out: print('inside')").output
    assert "Label(value='title')" in shown
    assert "[ranks 0-1] inside\n" in shown


def test_an_output_widget_of_an_earlier_cell(cluster):
    """What changes in it is shown in the current cell."""
    quiet(cluster, OUTPUT + "display(out)\nwith out: print('first')")
    assert "first\nsecond" in quiet(cluster, "with out: print('second')").output


def test_another_thread_prints_to_the_cell(cluster):
    """Only the thread that has entered an output widget prints into it."""
    code = OUTPUT + "import threading\nother = threading.Thread(target=print, args=('other',))\n"
    code += "with out:\n    other.start(); other.join(); print('hidden')"
    assert quiet(cluster, code).output == "[ranks 0-1] other\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "from rich.progress import track\nprint(sum(track(range(30), description='epoch')))",
            ("epoch", "435"),
        ),
        (
            "import rich.table\nt = rich.table.Table('loss')\nt.add_row(str(rank)); display(t)",
            ("loss", "│ 0", "│ 1"),
        ),
        in_soak(
            "from rich.live import Live\nwith Live('a') as live: live.update('x', refresh=True)",
            ("x",),
        ),
        in_soak("from rich.status import Status\nwith Status('working'): pass\nprint(1)", ("1",)),
        in_soak(
            "import logging; from rich.logging import RichHandler\n"
            "logger = logging.getLogger('rich test'); logger.addHandler(RichHandler())\n"
            "logger.warning('careful')",
            ("careful",),
        ),
        in_soak("from tqdm.rich import trange\nprint(sum(trange(4)))", ("6",)),
        in_soak(
            "import ipywidgets\nipywidgets.interact(lambda x: print('x is', x), x=3);", ("x is 3",)
        ),
        in_soak(
            "handle = display('a', display_id=True); handle.update('b'); print('done')",
            ("'b'", "done"),
        ),
        in_soak("from IPython.display import ProgressBar\nprint(sum(ProgressBar(3)))", ("3/3",)),
    ],
)
def test_progress_and_tables(cluster, code, expected):
    """What they show is in the output, and the cell's own code runs to its end."""
    shown = quiet(cluster, code).output
    assert all(text in shown for text in expected), shown


def test_errors_with_the_tracebacks_of_rich(cluster):
    """The cell that has installed them fails as usual, and so do later ones."""
    for code in ("from rich.traceback import install\nhook = install()\n1 / 0", "1 / 0"):
        with pytest.raises(RanksFailed, match="ZeroDivisionError: division by zero"):
            quiet(cluster, code)


def test_the_publisher_of_a_cell_has_what_libraries_use(cluster):
    """The attributes that ipykernel's has, and hooks that see displays or take them."""
    code = """
publisher, seen = get_ipython().display_pub, []
publisher.set_parent(get_ipython().kernel.get_parent())
assert publisher.session is not None and publisher.topic and publisher.parent_header
def see(message): seen.append(message["msg_type"]); return message
publisher.register_hook(see)
display("shown")
def take(message): return None
publisher.register_hook(take)
display("taken")
publisher.unregister_hook(take), publisher.unregister_hook(see)
print(seen)
"""
    shown = quiet(cluster, code).output
    assert shown == "[ranks 0-1] 'shown'\n[ranks 0-1] ['display_data', 'display_data']\n"
