"""Build a wheel: fetch the source, unpack and patch it, run its ``setup.py``."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from workbench.horovod_build import recipe
from workbench.horovod_build.commands import PIP, run_logged
from workbench.horovod_build.failures import failure_from_log
from workbench.horovod_build.machine import Machine, TorchInfo, require_build_tools
from workbench.horovod_build.operations import BuildOperations
from workbench.horovod_build.patches import apply_patches, patches_for
from workbench.horovod_build.progress import Progress


class Compilation:
    """The build of one wheel, in an empty folder `work`."""

    def __init__(self, work: Path, log: Path, progress: Progress) -> None:
        self._work = work
        self._log = log
        self._progress = progress
        self._tools = work / "tools"

    def wheel(
        self, torch: TorchInfo, machine: Machine, operations: BuildOperations, jobs: int
    ) -> Path:
        """Build and return the wheel."""
        require_build_tools(self._work)
        self._progress.print_line(
            f"Building Horovod {recipe.VERSION} for PyTorch {torch.version} with "
            f"{', '.join(operations.names)}: this takes some minutes, once. Log: {self._log}"
        )
        self._progress.step("fetching Horovod's source and the build tools")
        source = self.fetch()
        apply_patches(source, patches_for(operations.names))
        toolchain = recipe.write_toolchain(
            self._work, torch.cxx_standard, operations.load_folders()
        )
        env = recipe.environment(
            os.environ,
            tools=self._tools,
            toolchain=toolchain,
            machine=machine,
            operations=operations,
            jobs=jobs,
        )
        env |= self._nccl_link(operations)
        self._progress.step("configuring (CMake)")
        wheels = self._work / "wheels"
        self._run(recipe.setup_command(wheels), folder=source, env=env, jobs=jobs)
        return next(wheels.glob("*.whl"))

    def fetch(self) -> Path:
        """Fetch the build tools and Horovod's source, and return the folder of the source."""
        self._fetch_tools()
        return self._fetch_source()

    def _fetch_tools(self) -> None:
        """Install the build tools into a separate folder, not into the environment."""
        requirements = list(recipe.BUILD_REQUIREMENTS)
        if shutil.which("cmake") is None:
            requirements.append("cmake")
        self._run([*PIP, "install", "--target", str(self._tools), *requirements])

    def _fetch_source(self) -> Path:
        """Download the published source, verify its hash, and unpack it."""
        pinned = self._work / "source.txt"
        pinned.write_text(
            f"horovod=={recipe.VERSION} --hash=sha256:{recipe.SDIST_SHA256}\n", encoding="utf-8"
        )
        command = [*PIP, "download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
        env = dict(os.environ) | recipe.tool_environment(os.environ, self._tools)
        self._run([*command, "--dest", str(self._work), "-r", str(pinned)], env=env)
        archive = next(self._work.glob("horovod-*.tar.gz"))
        with tarfile.open(archive) as packed:
            _extract(packed, self._work)
        return self._work / f"horovod-{recipe.VERSION}"

    def _nccl_link(self, operations: BuildOperations) -> dict[str, str]:
        """Link NCCL's library under the unversioned name that CMake searches for."""
        nccl = operations.chosen.get("nccl")
        if nccl is None or nccl.library is None:
            return {}
        folder = self._work / "nccl"
        folder.mkdir()
        (folder / "libnccl.so").symlink_to(nccl.library)
        return {"HOROVOD_NCCL_LIB": str(folder)}

    def _run(
        self,
        command: list[str],
        *,
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        jobs: int = 0,
    ) -> None:
        is_compiling = False

        def watch(line: str) -> None:
            nonlocal is_compiling
            if jobs and not is_compiling and line.startswith("["):
                is_compiling = True
                self._progress.step(f"compiling, {jobs} in parallel")
            self._progress.log_line(line)

        if run_logged(command, self._log, folder=folder, env=env, watch=watch) != 0:
            raise failure_from_log(self._log)


def _extract(packed: tarfile.TarFile, folder: Path) -> None:
    """Unpack the archive; its hash is pinned, so its paths are known to be safe."""
    if hasattr(tarfile, "data_filter"):
        packed.extractall(folder, filter="data")
    else:
        packed.extractall(folder)  # noqa: S202  # before Python 3.10.12 there is no filter
