"""Building Horovod: what is built, what is kept, what is said when it fails."""

import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import workbench
from workbench.errors import BuildFailed, UsageError
from workbench.horovod_build import Request, build, check
from workbench.horovod_build.cache import WheelCache, cache_folder
from workbench.horovod_build.causes import diagnose_log
from workbench.horovod_build.command import run_logged
from workbench.horovod_build.cures import CURES, record
from workbench.horovod_build.key import RECORD_NAME, facts, key
from workbench.horovod_build.machine import Machine, jobs, this_machine
from workbench.horovod_build.operations import choose, find_nccl
from workbench.horovod_build.progress import Progress
from workbench.horovod_build.proof import prove
from workbench.horovod_build.recipe import environment, write_toolchain
from workbench.horovod_build.torchinfo import TorchInfo, installed_torch
from workbench.horovod_build.wheelrecord import add_record

ROOT = Path(workbench.__file__).parents[1]
CPU_TORCH = TorchInfo("2.13.0+cpu", None, True, Path("/nowhere/torch"), None)
MACHINE = Machine("/usr/bin/c++", "c++ 12.2.0", ("-mavx",), "Linux-x86_64", "glibc-2.36")

needs_horovod = pytest.mark.skipif(
    find_spec("horovod") is None, reason="no Horovod is installed here: `workbench build-horovod`"
)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A PATH of its own: `tools("mpicxx", script)` puts a program on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def add(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return add


def environment_python(folder, *, shared=True):
    """An environment with the packages of this one (or none), and its interpreter."""
    venv.create(folder, with_pip=False)
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    paths = [str(ROOT)]
    if shared:
        paths += [path for path in sys.path if path.endswith("site-packages")]
    (site / "these.pth").write_text("\n".join(paths))
    return folder / "bin/python", site


def command_line(python, *arguments, **env):
    """`workbench build-horovod` in an environment, with `env` over this one's variables."""
    return subprocess.run(
        [python, "-m", "workbench", "build-horovod", *arguments],
        capture_output=True, text=True, env=os.environ | env, cwd="/", timeout=120,
        check=False,
    )  # fmt: skip


def tiny_wheel(folder, name="horovod-0.28.1-py3-none-any.whl"):
    """A real, installable wheel of one line."""
    path = folder / name
    info = "horovod-0.28.1.dist-info"
    content = {
        "horovod/__init__.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = "".join(f"{entry},,\n" for entry in (*content, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as wheel:
        for entry, text in (*content.items(), (f"{info}/RECORD", rows)):
            wheel.writestr(entry, text)
    return path


# The key


def test_the_key_changes_with_every_part():
    """A wheel is never taken for one that was built from anything else."""
    parts = facts(CPU_TORCH, MACHINE, choose(CPU_TORCH))
    others = {name: key(parts | {name: "another"}) for name in parts}
    assert len({key(parts), *others.values()}) == len(parts) + 1


@pytest.mark.parametrize(
    ("torch", "machine"),
    [
        ({"version": "2.13.0+cu130"}, {}),
        ({"version": "2.13.1+cpu"}, {}),
        ({"cuda": "13.0"}, {}),
        ({"cxx11_abi": False}, {}),
        ({}, {"compiler_version": "c++ 14.2.0"}),
        ({}, {"arch_flags": ()}),
        ({}, {"libc": "glibc-2.41"}),
        ({}, {"platform": "Linux-aarch64"}),
    ],
)
def test_what_was_found_reaches_the_key(torch, machine):
    """Each thing found about PyTorch and the machine makes another wheel."""
    operations = choose(CPU_TORCH)
    plain = key(facts(CPU_TORCH, MACHINE, operations))
    other = facts(
        dataclasses.replace(CPU_TORCH, **torch), dataclasses.replace(MACHINE, **machine), operations
    )
    assert key(other) != plain


def test_the_cures_reach_the_key():
    """A wheel from before a defect was cured is not taken for one with the cure."""
    assert facts(CPU_TORCH, MACHINE, choose(CPU_TORCH))["cures"] == record()


def test_operations_reach_the_key(tools):
    """With MPI is another wheel than without, and one MPI another than the next."""

    def current():
        return key(facts(CPU_TORCH, MACHINE, choose(CPU_TORCH)))

    tools("mpicxx", "echo 'mpicxx: Open MPI 4.1.4'")
    first = current()
    tools("mpicxx", "echo 'mpicxx: Open MPI 5.0.3'")
    second = current()
    without = key(facts(CPU_TORCH, MACHINE, choose(CPU_TORCH, unwanted=["mpi"])))
    assert len({first, second, without}) == 3


# Operations


def test_asking_for_nccl_without_cuda_says_what_was_found():
    """--with nccl beside a PyTorch without CUDA is an error that says so."""
    with pytest.raises(BuildFailed, match=r"--with nccl .* 2\.13\.0\+cpu is built without CUDA"):
        choose(CPU_TORCH, wanted=["nccl"])


def test_asking_for_mpi_where_there_is_none_names_the_package(monkeypatch, tmp_path):
    """--with mpi without mpicxx is an error that names what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildFailed, match="libopenmpi-dev"):
        choose(CPU_TORCH, wanted=["mpi"])


def test_mpi_is_built_where_it_is_found(tools):
    """An mpicxx on the PATH is enough for MPI, and --without mpi leaves it out."""
    tools("mpicxx", "echo 'mpicxx: Open MPI 4.1.4'")
    assert choose(CPU_TORCH).environment()["HOROVOD_WITH_MPI"] == "1"
    assert choose(CPU_TORCH, unwanted=["mpi"]).environment()["HOROVOD_WITHOUT_MPI"] == "1"


def test_nccl_is_taken_from_beside_pytorch(tmp_path):
    """The NCCL that PyTorch's own wheel brought is found, by its header and library."""
    root = tmp_path / "nvidia/nccl"
    for name in ("include", "lib"):
        (root / name).mkdir(parents=True)
    (root / "include/nccl.h").write_text(
        "#define NCCL_MAJOR 2\n#define NCCL_MINOR 27\n#define NCCL_PATCH 3\n"
    )
    (root / "lib/libnccl.so.2").write_bytes(b"")
    nvcc = tmp_path / "cuda/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    (tmp_path / "cuda/include").mkdir()
    (tmp_path / "cuda/include/cuda_runtime.h").touch()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    torch = TorchInfo("2.13.0+cu130", "13.0", True, tmp_path / "torch", str(tmp_path / "cuda"))
    assert find_nccl(torch).version == "NCCL 2.27.3, nvcc 13.0"
    env = choose(torch).environment()
    assert (env["HOROVOD_GPU_OPERATIONS"], env["HOROVOD_NCCL_INCLUDE"]) == (
        "NCCL",
        str(root / "include"),
    )


@pytest.mark.parametrize(
    ("wanted", "unwanted", "told"),
    [([], ["gloo"], "always"), (["mpi"], ["mpi"], "both"), (["ccl"], [], "gloo, nccl, mpi")],
)
def test_senseless_choices_are_refused(wanted, unwanted, told):
    """A choice that cannot mean anything is refused with what could be chosen."""
    with pytest.raises(UsageError, match=told):
        choose(CPU_TORCH, wanted, unwanted)


# The recipe


@pytest.mark.parametrize(("text", "standard"), [("C++20 or later compatible", 20), ("", 17)])
def test_the_standard_is_what_pytorch_demands(tmp_path, text, standard):
    """The C++ standard comes from PyTorch's header, and reaches CMake."""
    header = tmp_path / "include/torch/csrc/api/include/torch/all.h"
    header.parent.mkdir(parents=True)
    header.write_text(f"#error {text} compiler is required to use PyTorch.\n")
    torch = dataclasses.replace(CPU_TORCH, folder=tmp_path)
    assert torch.cxx_standard == standard
    write_toolchain(tmp_path, torch.cxx_standard)
    assert f"-std=c++{standard})" in (tmp_path / "standard.cmake").read_text()


@needs_horovod
def test_a_wheel_remembers_no_folder_of_its_build():
    """The library finds PyTorch beside itself, wherever the wheel is installed."""
    library = next(Path(check_folder("horovod")).glob("torch/mpi_lib_v2*.so"))
    if check().built is None:
        pytest.skip("this Horovod was not built by workbench build-horovod")
    said = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    searched = next(line for line in said.stdout.splitlines() if "runpath" in line.lower())
    assert "$ORIGIN/../../torch/lib" in searched
    assert "/tmp" not in searched


def test_settings_from_the_shell_do_not_reach_the_build(tmp_path):
    """A HOROVOD_WITH_TENSORFLOW left in somebody's shell changes no wheel."""
    env = environment(
        {"HOROVOD_WITH_TENSORFLOW": "1", "CXXFLAGS": "-pipe", "PATH": "/usr/bin"},
        tools=tmp_path, toolchain=tmp_path / "t.cmake", machine=MACHINE,
        operations=choose(CPU_TORCH, unwanted=["mpi"]), jobs=3,
    )  # fmt: skip
    assert "HOROVOD_WITH_TENSORFLOW" not in env
    assert env["CXXFLAGS"].startswith("-pipe ")
    assert env["MAKEFLAGS"] == "-j3"
    assert env["PATH"] == f"{tmp_path}/bin:/usr/bin"


def test_compilers_at_once_follow_cores_and_memory():
    """As many as there are cores, fewer where memory is short, never none."""
    assert jobs(memory_bytes=64 * 10**9, cores=8) == 8
    assert jobs(memory_bytes=4 * 10**9, cores=8) == 2
    assert jobs(memory_bytes=10**8, cores=8) == 1


# The cache


def test_the_cache_is_where_xdg_says(monkeypatch, tmp_path):
    """$XDG_CACHE_HOME decides; without it, ~/.cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "gradient-workbench/horovod"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache/gradient-workbench/horovod"


def test_a_damaged_wheel_is_not_used(tmp_path):
    """A wheel that was cut short counts as none, and a new one takes its place."""
    cache, wheel = WheelCache(tmp_path / "cache"), tiny_wheel(tmp_path)
    kept = cache.put("k", wheel, {})
    assert cache.get("k") == kept
    kept.write_bytes(wheel.read_bytes()[:100])
    assert cache.get("k") is None
    assert cache.put("k", wheel, {}) == cache.get("k")


def test_many_builders_leave_one_whole_entry(tmp_path):
    """Builders that finish at once never leave a mixture or a scrap."""
    cache, wheel = WheelCache(tmp_path / "cache"), tiny_wheel(tmp_path)
    threads = [threading.Thread(target=cache.put, args=("k", wheel, {})) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.get("k") is not None
    assert [path.name for path in cache.folder.iterdir()] == ["k"]


def test_a_second_builder_waits_for_the_first(tmp_path):
    """The second is told that it waits, and then finds the first one's wheel."""
    cache, wheel = WheelCache(tmp_path / "cache"), tiny_wheel(tmp_path)
    waits, found = threading.Event(), []

    def second():
        with cache.lock("k", waits.set):
            found.append(cache.get("k"))

    with cache.lock("k", lambda: pytest.fail("nobody else holds it")):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(30)
        kept = cache.put("k", wheel, {})
    thread.join(30)
    assert found == [kept]


@needs_horovod
def test_a_next_environment_takes_the_kept_wheel(tmp_path):
    """An environment with the same PyTorch gets Horovod without a compile."""
    here = facts(torch := installed_torch(), this_machine(), choose(torch))
    if WheelCache().get(key(here)) is None:
        pytest.skip("the cache has no wheel for this PyTorch: run `workbench build-horovod`")
    python, site = environment_python(tmp_path / "env")
    # No index can be reached, so that a compile could not even begin.
    done = command_line(python, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert done.returncode == 0, done.stderr
    assert "taken from the cache" in done.stdout or "installed already and fits" in done.stdout
    if "taken from the cache" in done.stdout:
        assert (site / "horovod/torch").is_dir()
        again = command_line(python, "--check")
        assert (again.returncode, "It fits." in again.stdout) == (0, True)


# Whether it fits


def another_horovod(site, *, library=None, **changed):
    """A copy of the installed Horovod with a changed record, or another library."""
    package = Path(check_folder("horovod"))
    shutil.copytree(package, site / "horovod")
    info = next(package.parent.glob("horovod-*.dist-info"))
    shutil.copytree(info, site / info.name)
    record = site / info.name / RECORD_NAME
    known = json.loads(record.read_text()) if record.exists() else {}
    record.write_text(json.dumps(known | changed))
    if library is not None:
        next((site / "horovod/torch").glob("mpi_lib_v2*.so")).write_bytes(library)


def check_folder(name):
    """The folder of an installed package, without importing it."""
    return next(iter(find_spec(name).submodule_search_locations))


def test_no_horovod_does_not_fit(tmp_path):
    """--check in an environment without Horovod says so, and its status is 1."""
    python, _ = environment_python(tmp_path / "env", shared=False)
    done = command_line(python, "--check")
    assert done.returncode == 1
    assert "Horovod is not installed" in done.stdout


@needs_horovod
def test_a_horovod_for_another_pytorch_does_not_fit(tmp_path):
    """After an upgrade of PyTorch --check names both, though the import still works."""
    python, site = environment_python(tmp_path / "env")
    another_horovod(site, torch="2.4.0+cpu")
    done = command_line(python, "--check")
    assert done.returncode == 1
    assert "built against PyTorch 2.4.0+cpu" in done.stdout
    assert "Operations: gloo" in done.stdout


@needs_horovod
def test_a_horovod_without_the_cures_is_to_be_rebuilt(tmp_path):
    """One from before a defect was cured is named as such, with what to do."""
    python, site = environment_python(tmp_path / "env")
    one, other = CURES
    another_horovod(site, torch=installed_torch().version, cures={one.name: one.digest()})
    done = command_line(python, "--check")
    assert done.returncode == 1
    assert f"Cures: {one.name}; without {other.name}." in done.stdout
    assert f"not recorded as cured of: {other.defect}. What to do:" in done.stdout


@needs_horovod
def test_a_horovod_that_does_not_import_does_not_fit(tmp_path):
    """--check really imports: a library that the loader refuses does not fit."""
    python, site = environment_python(tmp_path / "env")
    another_horovod(site, library=b"\x7fELF and nothing more")
    done = command_line(python, "--check")
    assert done.returncode == 1
    assert "does not import (ImportError" in done.stdout


def test_what_it_was_built_against_travels_with_the_wheel(tmp_path):
    """The facts are installed with the package, and removed with it."""
    wheel, target = tiny_wheel(tmp_path), tmp_path / "site"
    add_record(wheel, {"torch": "2.13.0+cpu"})
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, "--no-index", "--no-deps", "--target", target, wheel], check=True)
    info = target / "horovod-0.28.1.dist-info"
    assert json.loads((info / RECORD_NAME).read_text()) == {"torch": "2.13.0+cpu"}
    assert f"{RECORD_NAME},sha256=" in (info / "RECORD").read_text()


# The proof


@needs_horovod
def test_two_ranks_agree():
    """The installed Horovod sums over two real ranks."""
    assert prove() > 0


@needs_horovod
def test_a_proof_that_takes_too_long_is_ended():
    """No rank is left behind when the time is up, and the error says what was awaited."""
    before = rank_processes()
    with pytest.raises(BuildFailed, match="did not agree on a sum within 1 s"):
        prove(limit_s=1)
    assert rank_processes() <= before


def rank_processes():
    """The pids of proofs that run on this machine."""
    listed = subprocess.run(["pgrep", "-f", "proof_ranks.py"], capture_output=True, check=False)
    return set(listed.stdout.split())


# Failures, each really provoked

OLD_STANDARD = """echo '#include <ATen/ATen.h>' |
g++ -std=c++14 -Wfatal-errors -fsyntax-only -I{torch}/include -x c++ -"""

# As the kernel does it when memory is short: from outside, without a word to the compiler.
KILLED = """echo '#include <ATen/ATen.h>' |
g++ -std=c++17 -fsyntax-only -I{torch}/include -x c++ - &
until kill -9 $(pgrep -P $!) 2>/dev/null; do sleep 0.05; done; wait $!"""


def test_without_a_compiler_the_package_is_named(tmp_path):
    """No g++ on the PATH: the error says so and names the package."""
    python, _ = environment_python(tmp_path / "env")
    done = command_line(python, "--rebuild", PATH=str(tmp_path), CXX="")
    assert done.returncode == 1
    assert "no C++ compiler" in done.stderr
    assert "apt-get install g++ make" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_pytorch_it_says_how_to_install_it(tmp_path):
    """An environment without PyTorch: one message, no traceback."""
    python, _ = environment_python(tmp_path / "env", shared=False)
    done = command_line(python)
    assert done.returncode == 1
    assert "has no PyTorch" in done.stderr
    assert f"{python} -m pip install torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_network_it_says_so(monkeypatch, tmp_path):
    """No index answers: the cause is the network, and the log is named."""
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_RETRIES": "1",
        "PIP_NO_CACHE_DIR": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(BuildFailed) as caught:
        build(Request(rebuild=True), Progress(io.StringIO()), WheelCache(tmp_path))
    assert "could not be downloaded" in caught.value.cause
    log = next((tmp_path / "logs").glob("*.log"))
    assert str(log) in str(caught.value)
    assert len(str(caught.value).splitlines()) < 15


@pytest.mark.skipif(shutil.which("g++") is None, reason="the failures are a compiler's")
@pytest.mark.parametrize(
    ("command", "cause", "cure"),
    [
        (
            OLD_STANDARD,
            "too old for the C++ standard",
            "GCC 9",
        ),
        ("echo '#include <Python.h>' | g++ -fsyntax-only -x c++ -", "Python's headers", "-dev"),
        (
            KILLED,
            "memory",
            "--jobs 1",
        ),
        ("echo 'int main(){{}}' | g++ -S -o /dev/stdout -x c++ - > /dev/full", "disk", "TMPDIR"),
        ("{python} -m nonsuch; {python} -S -m pip", "has no pip", "ensurepip"),
        ("{python} -m pip install --no-index no-such", "index has not got", "PIP_INDEX_URL"),
        ("touch /proc/nothing/here; g++ /proc/1/nothing.cc", "not known here", "whole log"),
    ],
)  # fmt: skip
def test_a_real_log_tells_its_cause(tmp_path, command, cause, cure):
    """What the tools print when they fail is read as one cause with its cure."""
    log = tmp_path / "log"
    log.touch()
    ready = command.format(torch=check_folder("torch"), python=sys.executable)
    run_logged(["bash", "-o", "pipefail", "-c", ready], log, env=os.environ | {"LC_ALL": "C"})
    found = diagnose_log(log.read_text())
    assert cause in found.cause, log.read_text()
    assert cure in found.cure
    assert 0 < len(found.lines) <= 8


def test_no_process_outlives_its_command(tmp_path):
    """What a command leaves in the background ends with it."""
    log, lines = tmp_path / "log", []
    log.touch()
    script = "sleep 300 >/dev/null 2>&1 & echo $!"
    assert run_logged(["bash", "-c", script], log, watch=lines.append) == 0
    assert not Path(f"/proc/{lines[0]}").exists()
    assert log.read_text().startswith("$ bash -c")


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def cmake_output(progress):
    """What CMake's Makefiles print: percents that step back between targets."""
    for percent in [0, 1, 4, 9, 11, 3, 24, 24, 57, 100]:
        progress.log_line(f"[{percent:3}%] Building CXX object gloo/CMakeFiles/gloo.dir/types.cc.o")
    progress.log_line("/usr/bin/c++ -O3 [100%] is no percent here")


def test_a_log_gets_a_line_each_ten_percent():
    """Where output is no terminal, progress is a handful of lines with the time gone."""
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress.step("compiling")
        cmake_output(progress)
    lines = stream.getvalue().splitlines()
    assert [line.split(" (")[0].strip() for line in lines] == [
        "compiling", "compiling 11 %", "compiling 24 %", "compiling 57 %", "compiling 100 %",
    ]  # fmt: skip
    assert all(line.endswith(" s)") for line in lines)


def test_a_terminal_gets_one_line_that_moves():
    """On a terminal the line is rewritten in place, and gone at the end."""
    stream = Terminal()
    with Progress(stream) as progress:
        progress.step("compiling")
        cmake_output(progress)
    assert "\n" not in stream.getvalue()
    assert "compiling 57 %" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")
