"""Both wheels: their version, their types, and which of them has the front end."""

import json
import re
import subprocess
import sys
import venv
import zipfile

import pytest
from environments import NOTEBOOK, RANK, ROOT, build_wheel, pip
from timers import BUILD_S

import workbench as wb

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = """
import workbench as wb

with wb.Cluster(n=2) as cluster:
    reveal_type(cluster.run("rank").values)
    cluster.run(source=1)
reveal_type(wb.take_snapshot().gpus)
wb.Cluster.no_such_method()
"""


@pytest.fixture(scope="module", params=[NOTEBOOK, RANK], ids=["notebook", "rank"])
def wheel(request, tmp_path_factory):
    """A wheel of this tree."""
    return build_wheel(request.param, tmp_path_factory.mktemp("wheel"))


def test_one_version(wheel):
    """The packages, the front end and the code have the same."""
    front_end = json.loads((ROOT / "labextension/package.json").read_text())
    assert front_end["version"] == wb.__version__
    assert wheel.name.split("-")[1] == wb.__version__


def test_content(wheel):
    """Both have the package with its types; the front end is only where JupyterLab is."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {"workbench/__init__.py", "workbench/py.typed"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    front_end = {"labextensions", "static", "jupyter_server_config.d"}
    found = {part for name in names for part in name.split("/")} & front_end
    assert found == (set() if "rank" in wheel.name else front_end)


def test_a_script_is_checked_against_the_types(tmp_path):
    """A type checker knows each public name, and finds what is wrong in a user's script."""
    venv.create(tmp_path / "environment", with_pip=False)
    python = tmp_path / "environment/bin/python"
    pip("install", build_wheel(RANK, tmp_path), python=python)
    script = tmp_path / "script.py"
    names = [name for name in wb.__all__ if name != "__version__"]
    script.write_text(SCRIPT + "".join(f"reveal_type(wb.{name})\n" for name in names))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, script],
        cwd=tmp_path, capture_output=True, text=True, timeout=BUILD_S, check=False,
    )  # fmt: skip
    errors = re.findall(r": error: .*\[([a-z-]+)\]", done.stdout)
    assert errors == ["arg-type", "attr-defined"]
    values, gpus, *public = re.findall('Revealed type is "(.+)"', done.stdout)
    assert values == "dict[int, Any]"
    assert gpus.endswith(".Gpu, ...]")
    assert len(public) == len(names)
    assert "Any" not in public
