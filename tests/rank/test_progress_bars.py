"""Progress bars and widgets in a rank: text, one line that is written over."""

import pytest
from clusters import quiet
from run_notebook import opened, text_of, values_of

IMPORTS = ("tqdm.auto", "tqdm.notebook", "tqdm.autonotebook", "tqdm")


@pytest.mark.parametrize("module", IMPORTS)
def test_a_bar_is_one_line_of_each_rank(cluster, module):
    """Whichever tqdm is imported, the output has its last state; other output stays."""
    bars = "list(tqdm(range(50), desc='steps')); list(trange(7))"
    source = f"from {module} import tqdm, trange\nprint('before'); {bars}; print('after');"
    lines = quiet(cluster, source).output.splitlines()
    for rank in (0, 1):
        own = [line for line in lines if f"[rank {rank}]" in line or "[ranks 0-1]" in line]
        assert sum("steps: 100%|██████████| 50/50" in line for line in own) == 1
        assert sum("100%|██████████| 7/7" in line for line in own) == 1
        assert not any(" 0/50" in line for line in own)
    assert sum("before" in line or "after" in line for line in lines) == 2


def test_a_carriage_return_writes_over_the_line(cluster):
    """Only what it did not cover stays: the newest text, or the old one with a line's end."""
    source = "for i in range(9): print(f'{i} of 9', end='\\r')\nprint()\nprint('a\\rb\\r\\nc')"
    told = quiet(cluster, source).output
    assert told == "[ranks 0-1] 8 of 9\n[ranks 0-1] b\n[ranks 0-1] c\n"


def test_a_widget_is_its_text(cluster):
    """Displayed or last value, with one line that says why."""
    for show in ("display(slider)", "slider"):
        source = "import ipywidgets; from IPython.display import display\n"
        told = quiet(cluster, f"{source}slider = ipywidgets.IntSlider(3)\n{show}").output
        assert told.count("IntSlider(value=3)") == 1
        assert told.count("widgets are not supported in a rank") == 1


@pytest.mark.soak
def test_in_a_notebook():
    """No widget that the page has no model for is in the notebook."""
    with opened("%cluster start -n 2") as notebook:
        source = "from tqdm.auto import tqdm\nimport time, ipywidgets\n"
        source += "for i in tqdm(range(100)): time.sleep(0.005)\nipywidgets.IntSlider(3)"
        cell = notebook.run(f"%%distributed\n{source}")
        assert "widget-view" not in str([getattr(one, "data", "") for one in cell.outputs])
        assert text_of(cell, "stderr").count("100/100") == 2
        assert "50/100" not in text_of(cell)
        assert "IntSlider(value=3)" in text_of(cell) + values_of(cell)
