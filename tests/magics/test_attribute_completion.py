"""Tab after a dot completes attributes of the ranks' objects, and never disturbs a cell."""

import pytest
from jupyter_core.utils import run_sync
from run_notebook import error_of, opened, text_of
from timers import FAR_S, eventually


@pytest.fixture(scope="module")
def notebook():
    with opened("cluster = %cluster start -n 2") as notebook:
        source = (
            "%%distributed\nimport torch\nmodel = torch.nn.Linear(2, 2)\n"
            "class Own:\n"
            "    @property\n"
            "    def risky(self):\n"
            "        print('evaluated')\n"
            "        return self\n"
            "own = Own()"
        )
        assert not error_of(notebook.run(source))
        yield notebook


def matches(notebook, code):
    """What the kernel offers at the end of a cell."""

    async def ask():
        return await notebook.client.kc.complete(code, len(code), reply=True, timeout=FAR_S)

    return run_sync(ask)()["content"]["matches"]


def offered(notebook, code, name):
    """Whether a name is offered; a rank has half a second, so a busy machine tries again."""
    return eventually(lambda: name in matches(notebook, code))


def test_attributes(notebook):
    """Of a variable, along a path, and private ones after an underscore only."""
    assert offered(notebook, "%%distributed\nmodel.par", "parameters")
    assert offered(notebook, "%%distributed\nfor p in model.", "bias")
    found = matches(notebook, "%%distributed\nmodel.")
    assert not [name for name in found if name.startswith("_")]
    assert offered(notebook, "%%distributed\nmodel._par", "_parameters")
    assert offered(notebook, "%%distributed\ntorch.nn.Lin", "Linear")


def test_nothing_runs_on_the_rank(notebook):
    """A property is offered, and never evaluated."""
    assert offered(notebook, "%%distributed\nown.ri", "risky")
    assert matches(notebook, "%%distributed\nown.risky.ri") == []
    assert text_of(notebook.run("%%distributed\nprint('after')")) == "[ranks 0-1] after\n"


def test_nothing_is_asked_while_a_cell_runs(notebook):
    """There is no answer, and the cell goes on."""
    busy = "%%distributed --noblock --out done\nimport time\nwhile True: time.sleep(0.01)"
    assert not error_of(notebook.run(busy))
    began = "while cluster.state != 'running': __import__('time').sleep(0.02)"
    assert not error_of(notebook.run(began))
    assert matches(notebook, "%%distributed\nmodel.par") == []
    assert not error_of(notebook.run("assert not done.done()\n%cluster interrupt"))
    notebook.run("done.exception()")
    assert offered(notebook, "%%distributed\nmodel.par", "parameters")


def test_a_cell_of_the_notebook_is_not_affected(notebook):
    assert "parameters" not in matches(notebook, "model.par")
