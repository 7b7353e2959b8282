"""Building Horovod: what is built, how, and what is kept."""

import dataclasses
import subprocess
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
from horovod_environments import (
    CPU_TORCH,
    MACHINE,
    check_folder,
    command_line,
    environment_python,
    needs_horovod,
    tiny_wheel,
)
from timers import InThread

from workbench.errors import BuildFailed, UsageError
from workbench.horovod_build import check
from workbench.horovod_build.machine import TorchInfo, installed_torch, jobs, this_machine
from workbench.horovod_build.operations import choose, find_nccl
from workbench.horovod_build.patches import digests
from workbench.horovod_build.recipe import environment, write_toolchain
from workbench.horovod_build.wheels import WheelCache, cache_folder, facts, key

pytestmark = pytest.mark.timeout(300)


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


def test_the_patches_are_part_of_the_key():
    """A wheel from before a defect was patched is not used in place of a patched one."""
    assert facts(CPU_TORCH, MACHINE, choose(CPU_TORCH))["cures"] == digests()


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
    """--with nccl for a PyTorch without CUDA is an error with that reason."""
    with pytest.raises(BuildFailed, match=r"--with nccl: .* 2\.13\.0\+cpu is built without CUDA"):
        choose(CPU_TORCH, wanted=["nccl"])


def test_asking_for_mpi_where_there_is_none_names_the_package(monkeypatch, tmp_path):
    """--with mpi without mpicxx is an error that names what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildFailed, match="libopenmpi-dev"):
        choose(CPU_TORCH, wanted=["mpi"])


def test_a_compiler_wrapper_without_headers_is_no_mpi(tools, tmp_path):
    """Debian's openmpi-bin has mpicxx and no mpi.h: nothing is built with it."""
    tools("mpicxx", f"echo {tmp_path}")
    assert "mpi" not in choose(CPU_TORCH).names
    (tmp_path / "mpi.h").touch()
    assert "mpi" in choose(CPU_TORCH).names


def test_mpi_is_built_where_it_is_found(tools):
    """An mpicxx on the PATH is enough for MPI, and --without mpi leaves it out."""
    tools("mpicxx", "echo 'mpicxx: Open MPI 4.1.4'")
    assert choose(CPU_TORCH).environment()["HOROVOD_WITH_MPI"] == "1"
    assert choose(CPU_TORCH, unwanted=["mpi"]).environment()["HOROVOD_WITHOUT_MPI"] == "1"


def test_tensorflow_is_built_only_if_it_is_wanted():
    """Its ops take minutes more: --with tensorflow builds them, or says why it cannot."""
    assert choose(CPU_TORCH).environment()["HOROVOD_WITHOUT_TENSORFLOW"] == "1"
    if find_spec("tensorflow") is None:
        with pytest.raises(BuildFailed, match="--with tensorflow: `import tensorflow` fails"):
            choose(CPU_TORCH, wanted=["tensorflow"])
        return
    chosen = choose(CPU_TORCH, wanted=["tensorflow"])
    assert chosen.environment()["HOROVOD_WITH_TENSORFLOW"] == "1"
    with_it, without = (
        facts(CPU_TORCH, MACHINE, chosen),
        facts(CPU_TORCH, MACHINE, choose(CPU_TORCH)),
    )
    assert key(with_it) != key(without)


def test_nccl_is_taken_from_the_folder_of_pytorch(tmp_path):
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
    ("wanted", "unwanted", "message"),
    [
        ([], ["gloo"], "always"),
        (["mpi"], ["mpi"], "exclude each other"),
        (["ccl"], [], "gloo, nccl, mpi"),
    ],
)
def test_contradictory_choices_are_rejected(wanted, unwanted, message):
    """A choice that cannot mean anything is refused with what could be chosen."""
    with pytest.raises(UsageError, match=message):
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
    """The library finds PyTorch in the neighbouring folder, wherever the wheel is installed."""
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


def test_many_builders_leave_one_complete_entry(tmp_path):
    """Builders that finish at once never leave a mixture or a scrap."""
    cache, wheel = WheelCache(tmp_path / "cache"), tiny_wheel(tmp_path)
    for thread in [InThread(cache.put, "k", wheel, {}) for _ in range(8)]:
        thread.join()
    assert cache.get("k") is not None
    assert [path.name for path in cache.folder.iterdir()] == ["k"]


def test_a_second_builder_waits_for_the_first(tmp_path):
    """The second reports that it waits, and then finds the wheel of the first."""
    cache, wheel = WheelCache(tmp_path / "cache"), tiny_wheel(tmp_path)
    waits, found = threading.Event(), []

    def second():
        with cache.lock("k", waits.set):
            found.append(cache.get("k"))

    with cache.lock("k", lambda: pytest.fail("nobody else holds it")):
        thread = InThread(second)
        assert waits.wait(60)
        kept = cache.put("k", wheel, {})
    thread.join()
    assert found == [kept]


@pytest.mark.soak
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
