"""Horovod's patched source, and the headers of CUDA and NCCL, to compile what a GPU build does.

Downloads and what is compiled are kept in the user's cache, as wheels of Horovod are.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import cached_property, partial
from pathlib import Path

import pytest
from compile_cache import cached_file, content_key
from timers import BUILD_S, InThread

from workbench.errors import BuildFailed
from workbench.horovod_build import recipe
from workbench.horovod_build.compiling import Compilation
from workbench.horovod_build.machine import installed_torch, this_machine
from workbench.horovod_build.patches import apply_patches
from workbench.horovod_build.progress import Progress
from workbench.horovod_build.wheels import cache_folder

SIMULATED_CUDA = Path(__file__).with_name("simulated_cuda")
_CACHE = cache_folder().with_name("test-sources")
_HEADERS = {
    "nvidia-nccl-cu12==2.19.3": "nvidia/nccl/include",
    "nvidia-cuda-runtime-cu12==12.9.79": "nvidia/cuda_runtime/include",
    "nvidia-cuda-nvcc-cu12==12.9.86": "nvidia/cuda_nvcc/include",
    "nvidia-cuda-cccl-cu12==12.9.27": "nvidia/cuda_cccl/include",
}
_BOOST = ("assert", "config", "core", "detail", "iterator", "lockfree", "mpl", "parameter")
_BOOST += ("predef", "preprocessor", "static_assert", "type_traits", "utility")
_SIMULATED = """
common controller fusion_buffer_manager group_table half logging message operations
parameter_manager response_cache stall_inspector tensor_queue thread_pool timeline
ops/collective_operations ops/cuda_operations ops/gpu_operations ops/nccl_operations
ops/operation_manager optim/bayesian_optimization optim/gaussian_process utils/env_parser
"""
_OPERATIONS = ("ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER")


class NcclSources:
    """A patched source, which is compiled with the definitions of a build with NCCL."""

    def __init__(self, folder: Path) -> None:
        original = _cached(f"horovod-{recipe.VERSION}", _fetch_horovod)
        shutil.copytree(original, folder, symlinks=True)
        apply_patches(folder)
        self._folder = folder
        third, self._common = folder / "third_party", folder / "horovod/common"
        self._flags = [
            this_machine().compiler,
            f"-std=c++{installed_torch().cxx_standard}",
            *("-fPIC", "-pthread", "-Wall", "-DEIGEN_MPL2_ONLY=1"),
            *("-DHAVE_CUDA=1", "-DHAVE_GPU=1", "-DHAVE_NCCL=1"),
            *(f"-DHOROVOD_GPU_{operation}={ord('N')}" for operation in _OPERATIONS),
            *(f"-I{third}/boost/{name}/include" for name in _BOOST),
            *(f"-I{third}/{name}" for name in ("gloo", "eigen", "flatbuffers/include")),
            *(f"-I{third}/{name}/include" for name in ("HTTPRequest", "lbfgs")),
        ]
        for package, headers in _HEADERS.items():
            fetch = partial(_fetch_headers, package, headers)
            self._flags += ["-isystem", str(_cached(package, fetch))]

    def check(self, *names: str) -> None:
        """Compile files of ``horovod/common``, as they are in a build with Gloo and NCCL."""
        files = [str(self._common / name) for name in names]
        flags = ("-include", "cstdint", "-DHAVE_GLOO=1", "-fsyntax-only")

        def compile_all(passed: Path) -> None:
            _at_once(lambda file: self._run(*flags, file), files)
            passed.touch()

        cached_file(self._key(*names), compile_all)

    def link_simulation(self, library: Path) -> Path:
        """Compile Horovod with a simulated GPU into a library, without Gloo."""
        build = partial(self._build_simulation, library.parent)
        shutil.copy(cached_file(self._key("simulation"), build), library)
        return library

    def _key(self, *names: str) -> str:
        """Return the key of what is made from these sources, by the code of this file."""
        return hashlib.sha256("\0".join([self._sources_key, *names]).encode()).hexdigest()

    @cached_property
    def _sources_key(self) -> str:
        flags = [flag.replace(str(self._folder), "") for flag in self._flags]
        texts = [*flags, Path(__file__).read_text()]
        return content_key([self._folder, SIMULATED_CUDA], self._flags[0], *texts)

    def _build_simulation(self, work: Path, library: Path) -> None:
        header = work / "horovod.h"
        shutil.copy(SIMULATED_CUDA / header.name, header)
        flags = [f"-I{self._common}", f"-I{SIMULATED_CUDA}", "-fno-gnu-unique"]
        self._run(*flags, "-x", "c++-header", str(header), "-o", f"{header}.gch")
        files = [self._common / f"{name}.cc" for name in _SIMULATED.split()]
        files += sorted(SIMULATED_CUDA.glob("*.cc"))
        flags += ["-include", str(header), "-Werror=invalid-pch", "-c"]
        objects: list[str] = []

        def compile_file(file: Path) -> None:
            # each is kept, so that a build that exceeds its time limit goes on in the next run
            key = self._key("object", file.name)
            cached = cached_file(key, lambda path: self._run(*flags, str(file), "-o", str(path)))
            objects.append(str(cached))

        _at_once(compile_file, files)
        # nothing is shared with another Horovod in the process
        linked = ("-shared", "-Wl,-Bsymbolic,-z,defs", "-o", str(library))
        self._run(*linked, *sorted(objects))

    def _run(self, *arguments: str) -> None:
        command = [*self._flags, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]


def _at_once(run, items) -> None:
    remaining = iter(items)  # shared: each thread takes the next item
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                item = next(remaining, None)
            if item is None:
                return
            run(item)

    for thread in [InThread(work) for _ in range(os.cpu_count() or 1)]:
        thread.join(BUILD_S)


def _cached(name: str, fetch) -> Path:
    """Return a folder of the cache, which `fetch` fills when it is first needed."""
    kept = _CACHE / name
    if not kept.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as work:
            found = fetch(Path(work))
            try:
                found.rename(kept)
            except OSError:  # another process was faster
                assert kept.exists()
    return kept


def _fetch_horovod(work: Path) -> Path:
    log = work / "log"
    log.touch()
    try:
        return Compilation(work, log, Progress()).fetch()
    except BuildFailed as error:
        pytest.skip(f"Horovod's source cannot be fetched here: {error}")


def _fetch_headers(package: str, headers: str, work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    command += ["--timeout", "10", "--retries", "1"]
    command += ["--no-deps", "--target", str(work / "package"), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_S)
    if done.returncode != 0:
        pytest.skip(f"{package} cannot be installed here: {done.stderr.strip()[-300:]}")
    return work / "package" / headers
