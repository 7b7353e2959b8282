"""The command line writes to a terminal that has only ASCII, whatever names it shows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from levels import in_soak

EXAMPLES = Path(__file__).parents[2] / "notebooks" / "examples"
TERMINALS = {
    "ASCII output": {"LANG": "C", "PYTHONIOENCODING": "ascii"},
    "ASCII everywhere": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
HOST = "hôte-中"
ESCAPED = r"h\xf4te-\u4e2d"


@pytest.fixture(params=TERMINALS)
def workbench(request):
    """Run the command line in such a terminal; return what it wrote, and its exit status."""
    terminal = {name: value for name, value in os.environ.items() if not name.startswith("LC_")}

    def run(*command):
        done = subprocess.run(
            [sys.executable, "-m", "workbench", *map(str, command)],
            env=terminal | TERMINALS[request.param],
            capture_output=True,
            check=False,
        )
        error = done.stderr.decode("ascii")
        assert "Traceback" not in error, error
        return done.stdout.decode("ascii"), error, done.returncode

    return run


@pytest.fixture
def vm(tmp_path):
    """A snapshot of a host whose name, like the file's, is not ASCII."""
    plain = json.loads((EXAMPLES / "vm1.json").read_text())
    plain["host"]["hostname"] = HOST
    path = tmp_path / "é" / "vm.json"
    path.parent.mkdir()
    path.write_text(json.dumps(plain))
    return path


@pytest.mark.parametrize("command", ["resources", "doctor"])
def test_names_are_escaped(workbench, vm, command):
    """Each character that the terminal lacks is escaped."""
    out, error, status = workbench(command, vm)
    assert ESCAPED in out
    assert (error, status) == ("", 0)


def test_several_files(workbench, vm):
    """Also in a comparison, and in the error about a file that does not exist."""
    assert ESCAPED in workbench("doctor", vm, EXAMPLES / "vm2.json")[0]
    out, error, status = workbench("doctor", vm, vm.with_name("no.json"))
    assert (out, status) == ("", 1)
    assert "no.json: No such file or directory" in error


def test_json_stays_json(workbench, vm):
    """A script reads the names as they are."""
    assert json.loads(workbench("resources", "--json", vm)[0])["host"]["hostname"] == HOST
    assert list(json.loads(workbench("doctor", "--json", vm)[0])["vms"]) == [HOST]


def test_a_file_that_is_written(workbench, vm):
    """The message about it has the file's name, escaped."""
    path = vm.with_name("topology.xml")
    out, _, status = workbench("resources", "--topology", EXAMPLES / "vm1-topology.xml",
                               "--write-topology", path)  # fmt: skip
    assert out.startswith("Wrote ")
    assert status == 0
    assert path.exists()


@pytest.mark.parametrize(
    "command",
    [["resources"], ["doctor"], in_soak(["build-horovod", "--check"])],
    ids=" ".join,
)
def test_this_machine(workbench, command):
    """Whatever its devices are called."""
    assert workbench(*command)[0]


def test_the_notebook_of_the_demo(workbench, tmp_path):
    """What the notebook prints is escaped; the page has it as it is."""
    cell = nbformat.v4.new_code_cell("print('été: ± 3 µs')", metadata={"tags": ["summary"]})
    notebook, page = tmp_path / "é.ipynb", tmp_path / "é.html"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), notebook)
    out, error, status = workbench("demo", "--notebook", notebook, "--html", page)
    assert status == 0, error
    assert r"\xe9t\xe9: \xb1 3 \xb5s" in out
    assert "été: ± 3 µs" in page.read_text(encoding="utf-8")
