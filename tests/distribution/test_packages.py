"""What `make dist` builds: content, sizes, and the same bytes from each build."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from environments import FRONT_END, RANK, ROOT, build_packages
from timers import BUILD_S

import workbench as wb

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NOTEBOOK_WHEEL = f"gradient_workbench-{wb.__version__}-py3-none-any.whl"
RANK_WHEEL = f"gradient_workbench_rank-{wb.__version__}-py3-none-any.whl"
NOTEBOOK_SDIST = f"gradient_workbench-{wb.__version__}.tar.gz"
RANK_SDIST = f"gradient_workbench_rank-{wb.__version__}.tar.gz"
WHEELS = {NOTEBOOK_SDIST: NOTEBOOK_WHEEL, RANK_SDIST: RANK_WHEEL}
MAX_BYTES = {NOTEBOOK_WHEEL: 2_000_000, RANK_WHEEL: 1_500_000}
MAX_BYTES |= {NOTEBOOK_SDIST: 2_500_000, RANK_SDIST: 1_500_000}
DATA = f"gradient_workbench-{wb.__version__}.data/data"
OF_THE_FRONT_END = {
    f"{DATA}/share/jupyter/labextensions/gradient-workbench/package.json",
    f"{DATA}/share/jupyter/labextensions/gradient-workbench/install.json",
    f"{DATA}/share/jupyter/labextensions/gradient-workbench/static/style.js",
    f"{DATA}/share/jupyter/labextensions/gradient-workbench/static/third-party-licenses.json",
    f"{DATA}/share/jupyter/labextensions/gradient-workbench/schemas/gradient-workbench/panel.json",
    f"{DATA}/etc/jupyter/jupyter_server_config.d/gradient_workbench.json",
    "workbench/locale/de_DE/LC_MESSAGES/gradient_workbench.json",
    "workbench/notebooks/01-quickstart.ipynb",
    "workbench/widgets/static/live.js",
    "workbench/widgets/static/live.css",
}
OF_BOTH = {"workbench/__init__.py", "workbench/py.typed", "workbench/horovod_build/tap/tap.cc"}
# Folders of a checkout that nobody who installs a package needs.
OF_A_CHECKOUT = {
    "tests",
    "test",
    "node_modules",
    "lib",
    "__pycache__",
    "distributions",
    ".ci",
    "docs",
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The four files."""
    return build_packages(tmp_path_factory.mktemp("dist"))


def names_in(path):
    """The names of a package's files; in a sdist without its first folder."""
    if path.suffix == ".whl":
        return set(zipfile.ZipFile(path).namelist())
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_what_is_built(packages):
    """An sdist and a wheel of each distribution, none of them larger than promised."""
    assert packages.keys() == MAX_BYTES.keys()
    sizes = {name: path.stat().st_size for name, path in packages.items()}
    assert {name: size for name, size in sizes.items() if size > MAX_BYTES[name]} == {}


def test_content_of_the_wheels(packages):
    """The front end, the server's configuration and the quickstart are in one of them only."""
    notebook, rank = names_in(packages[NOTEBOOK_WHEEL]), names_in(packages[RANK_WHEEL])
    assert notebook >= OF_THE_FRONT_END | OF_BOTH
    assert rank >= OF_BOTH
    assert not rank & OF_THE_FRONT_END
    assert {name for name in notebook - rank if name.endswith(".py")} == set()
    for names in (notebook, rank):
        assert any(name.endswith("licenses/LICENSE") for name in names)


def test_no_files_of_a_checkout(packages):
    """Neither tests, nor what a build has left."""
    for path in packages.values():
        parts = {part for name in names_in(path) for part in Path(name).parts}
        assert parts & OF_A_CHECKOUT == set()


def test_content_of_the_sdists(packages):
    """The front end is there built, and with its source; the licence is a file."""
    names = names_in(packages[NOTEBOOK_SDIST])
    built = {FRONT_END.relative_to(ROOT).as_posix(), "workbench/widgets/static/live.js"}
    source = {"labextension/package.json", "labextension/yarn.lock", "labextension/src/index.ts"}
    assert names >= built | source | {"LICENSE", "README.md", "pyproject.toml"}
    with tarfile.open(packages[RANK_SDIST]) as archive:
        licence = archive.extractfile(f"{RANK_SDIST.removesuffix('.tar.gz')}/LICENSE")
        assert licence.read() == (ROOT / "LICENSE").read_bytes()
    assert (RANK / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_no_paths_of_the_machine_that_built_it(packages):
    """No file names the folder of the checkout or the user's home."""
    paths = {str(ROOT).encode(), str(Path.home()).encode() + b"/"}
    wheel = zipfile.ZipFile(packages[NOTEBOOK_WHEEL])
    found = [name for name in wheel.namelist() if any(path in wheel.read(name) for path in paths)]
    assert found == []


def test_the_same_bytes_from_each_build(packages, tmp_path):
    """With other permissions, in another time zone and language, in a process of its own."""
    before = os.umask(0o077)
    try:
        other = build_packages(
            tmp_path / "dist", TZ="Asia/Kathmandu", LC_ALL="C", PYTHONHASHSEED="7"
        )
    finally:
        os.umask(before)
    assert other.keys() == packages.keys()
    different = [
        name for name in packages if packages[name].read_bytes() != other[name].read_bytes()
    ]
    assert different == []


@pytest.mark.parametrize("sdist", WHEELS)
def test_an_sdist_builds_the_same_wheel_without_node(packages, tmp_path, sdist):
    """With pip, and with a PATH on which there is no program at all."""
    with zipfile.ZipFile(packages[WHEELS[sdist]]) as wheel:
        built = wheel.infolist()[0].date_time
    environment = {name: value for name, value in os.environ.items() if "SKIP_JUPYTER" not in name}
    environment |= {"PATH": str(tmp_path), "SOURCE_DATE_EPOCH": commit_time(), "TZ": "UTC"}
    assert shutil.which("node", path=environment["PATH"]) is None
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps",
         "--no-build-isolation", "--wheel-dir", tmp_path, packages[sdist]],
        env=environment, check=True, timeout=BUILD_S,
    )  # fmt: skip
    (again,) = tmp_path.glob("*.whl")
    assert built > (2026, 1, 1, 0, 0, 0)
    assert again.name == WHEELS[sdist]
    assert again.read_bytes() == packages[again.name].read_bytes()


def commit_time():
    """The time of the last commit, in seconds since 1970, as text."""
    command = ["git", "-C", ROOT, "log", "-1", "--format=%ct"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_an_index_would_take_them(packages):
    """Twine finds nothing wrong with the metadata, and can render the descriptions."""
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict"]
    done = subprocess.run(
        [*command, *packages.values()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == len(packages)
