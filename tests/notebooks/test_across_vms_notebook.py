"""The notebook across two test VMs, run as `make demo` runs the quickstart."""

import re
from pathlib import Path

import nbformat
import pytest
from tutorials import executed

from workbench.demo import NOTEBOOK, run_demo, write_page
from workbench.errors import CellError
from workbench.testbed import why_not

ACROSS_VMS = NOTEBOOK.with_name("02-across-vms.ipynb")
NAMESPACES = Path("/run/netns")

needs_vms = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def code_cells():
    page = nbformat.read(ACROSS_VMS, as_version=4)
    return [cell for cell in page.cells if cell.cell_type == "code"]


def written(folder, *cells):
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "part.ipynb")
    return folder / "part.ipynb"


def what_is_left(ssh_config):
    """The files and namespaces of the VMs that `ssh_config` was written for."""
    folder = Path(ssh_config).parent
    return [path for path in (folder, *NAMESPACES.glob(f"{folder.name}-*")) if path.exists()]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return write_page(executed(ACROSS_VMS), tmp_path_factory.mktemp("across") / "across-vms.html")


@pytest.fixture(scope="module")
def figures(result):
    """Iteration, exposed, communication and least time in ms, and busbw, by the link's rate."""
    pattern = (
        r"Over (\d+) Gbit/s an iteration takes ([\d.]+) ms; for ([\d.]+) ms .*\n"
        r"They take ([\d.]+) ms, at ([\d.]+) Gbit/s\. The link needs at least ([\d.]+) ms"
    )
    names = ("iteration", "exposed", "communication", "busbw", "least")
    return {
        int(gbps): dict(zip(names, map(float, values), strict=True))
        for gbps, *values in re.findall(pattern, result.summary)
    }


@pytest.mark.soak
@pytest.mark.timing
@needs_vms
def test_it_learns_the_same_over_both_links(result):
    """Both ranks reach over 95 % on the held-out scans, whatever the link."""
    slow, fast = re.findall(r"\[ranks 0-1\] test accuracy ([\d.]+)%", result.summary)
    assert float(slow) > 95
    assert slow == fast


@pytest.mark.soak
@pytest.mark.timing
@needs_vms
def test_the_slow_link_costs(figures):
    """Training waits for clearly longer."""
    assert figures[1]["exposed"] > 1.5 * figures[10]["exposed"]


@pytest.mark.soak
@pytest.mark.timing
@needs_vms
def test_nothing_is_faster_than_the_slow_link(figures):
    """The gradients' bandwidth stays below its rate, their time above the least."""
    slow = figures[1]
    assert 0 < slow["busbw"] <= 1.02
    assert slow["communication"] >= 0.98 * slow["least"]


@pytest.mark.soak
@pytest.mark.timing
@needs_vms
def test_it_says_what_the_faster_link_saved(result, figures):
    """The last sentence is the difference between the two runs."""
    saved = re.search(r"an iteration is (-?[\d.]+) ms shorter \((-?\d+)%\)", result.summary)
    slow, fast = figures[1]["iteration"], figures[10]["iteration"]
    assert float(saved[1]) == pytest.approx(slow - fast, abs=0.11)
    assert int(saved[2]) == pytest.approx(100 * (slow - fast) / slow, abs=1)


@pytest.mark.soak
@pytest.mark.timing
@needs_vms
def test_the_page_shows_where_the_ranks_were(result):
    """A VM each, the live view's last picture, and the table of both links."""
    page = result.html.read_text()
    assert re.search(r">vm1</td>.*>vm2</td>", page, re.DOTALL)
    assert "<svg" in page
    assert re.search(r"<th>1 Gbit/s</th>\s*<th>10 Gbit/s</th>", page)


@pytest.mark.soak
@pytest.mark.timing
@needs_vms
def test_nothing_is_left(result):
    """At its end the VMs are gone."""
    (ssh_config,) = set(re.findall(r"/run/workbench-vms/\w+/ssh_config", result.html.read_text()))
    assert what_is_left(ssh_config) == []


@needs_vms
def test_nothing_is_left_where_a_cell_fails(tmp_path):
    """The VMs end with the kernel, and the cells that would end them need not run."""
    note = f"open({str(tmp_path / 'note')!r}, 'w').write(str(machines.ssh_config)); 1 / 0"
    notebook = written(tmp_path, code_cells()[0], nbformat.v4.new_code_cell(note))
    with pytest.raises(CellError, match="ZeroDivisionError"):
        run_demo(tmp_path / "x.html", notebook)
    assert what_is_left((tmp_path / "note").read_text()) == []


def test_it_says_why_there_are_no_vms(tmp_path):
    """If they cannot be made, the first cell raises an error with the reason."""
    no_root = "import workbench.testbed\nworkbench.testbed.why_not = lambda: 'no root here'"
    notebook = written(tmp_path, nbformat.v4.new_code_cell(no_root), code_cells()[0])
    with pytest.raises(CellError, match=r"VmsUnavailable: .*two VMs.*no root here"):
        run_demo(tmp_path / "x.html", notebook)


def test_the_notebook_is_committed_without_outputs():
    """All outputs are made by whoever runs it."""
    assert not [cell for cell in code_cells() if cell.outputs or cell.execution_count]
