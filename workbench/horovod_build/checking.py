"""Check the installed Horovod, and whether it fits the installed PyTorch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from workbench.horovod_build.machine import json_after, run_probe
from workbench.horovod_build.patch import SourcePatch
from workbench.horovod_build.patches import PATCHES, missing_patches
from workbench.horovod_build.wheels import RECORD_NAME

_PROBE = """
import glob, json, torch
facts = {"torch": str(torch.__version__)}
import horovod
facts["folder"] = horovod.__path__[0]
try:
    facts["metadata"] = json.load(open(horovod.__path__[0] + "/metadata.json"))
except (OSError, ValueError):
    facts["metadata"] = {}
print("FACTS " + json.dumps(facts), flush=True)
import horovod.torch as hvd
built = {"gloo": hvd.gloo_built(), "nccl": bool(hvd.nccl_built()), "mpi": hvd.mpi_built()}
built["tensorflow"] = bool(glob.glob(horovod.__path__[0] + "/tensorflow/mpi_lib*"))
print("BUILT " + json.dumps([name for name, there in built.items() if there]))
"""


@dataclass(frozen=True)
class Report:
    """Result of `check`.

    Attributes
    ----------
    version
        Version of the installed Horovod; None if it is not installed.
    built
        The facts that `workbench build-horovod` wrote into the package; None if
        another program built it.
    built_against
        The PyTorch that it was built against; None if that is not recorded.
    torch
        The installed PyTorch; None if it cannot be imported.
    operations
        Operations that the library reports; empty if it cannot be imported.
    unpatched
        Names of the patches (`patches.PATCHES`) that its record does not list.
    problem
        Why Horovod should be rebuilt, with what to do; None if it fits.
    """

    version: str | None
    built: dict[str, Any] | None = None
    built_against: str | None = None
    torch: str | None = None
    operations: tuple[str, ...] = ()
    unpatched: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def fits(self) -> bool:
        """Whether it can be used with the installed PyTorch."""
        return self.problem is None

    def describe(self) -> str:
        """Return the report as text, in a few lines.

        Examples
        --------
        >>> print(Report(None, problem="What to do: `workbench build-horovod`.").describe())
        Horovod is not installed.
        What to do: `workbench build-horovod`.
        """
        if self.version is None:
            return f"Horovod is not installed.\n{self.problem}"
        by = "by workbench build-horovod" if self.built else "by something else"
        against = self.built_against or "a PyTorch that is not recorded"
        lines = [
            f"Horovod {self.version}, built {by} against PyTorch {against}.",
            f"Installed PyTorch: {self.torch or 'it does not import'}.",
            f"Operations: {', '.join(self.operations) or 'unknown, it does not import'}.",
            f"Patches: {self._patches()}.",
            self.problem or "It fits.",
        ]
        if self.built:
            lines.insert(1, f"Compiler: {self.built.get('compiler', 'not recorded')}.")
        return "\n".join(lines)

    def _patches(self) -> str:
        """Return the names of the applied patches, and of the missing ones."""
        applied = [patch.name for patch in PATCHES if patch.name not in self.unpatched]
        without = f"without {', '.join(self.unpatched)}" if self.unpatched else ""
        return "; ".join(filter(None, (", ".join(applied), without)))


def check() -> Report:
    """Check the installed Horovod by importing it in a new interpreter."""
    try:
        package = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return Report(None, problem="What to do: `workbench build-horovod`.")
    probe = run_probe(_PROBE)
    facts = json_after(probe.stdout, "FACTS ") or {}
    built = _recorded(package)
    against = (built or {}).get("torch") or facts.get("metadata", {}).get("pytorch")
    operations = json_after(probe.stdout, "BUILT ")
    installed = facts.get("torch")
    unpatched = missing_patches(built)
    return Report(
        version=package.version,
        built=built,
        built_against=against,
        torch=installed,
        operations=tuple(operations or ()),
        unpatched=tuple(patch.name for patch in unpatched),
        problem=_fit_problem(operations is not None, probe.stderr, against, installed)
        or _patch_problem(unpatched),
    )


def _fit_problem(
    imports: bool, stderr: str, against: str | None, installed: str | None
) -> str | None:
    if not imports:
        last = (stderr.strip().splitlines() or ["no output"])[-1][:300]
        return (
            f"It does not fit: it does not import ({last}). What to do: `workbench build-horovod`."
        )
    if against is not None and against != installed:
        return (
            f"It does not fit: it was built against PyTorch {against}, but {installed} is "
            "installed. It imports, but PyTorch's C++ interface differs between releases, so it "
            "may read wrong memory without an error. What to do: `workbench build-horovod`."
        )
    return None


def _patch_problem(unpatched: list[SourcePatch]) -> str | None:
    if not unpatched:
        return None
    return (
        "It imports, but should be rebuilt: its record does not list the patches for these "
        f"defects: {'; '.join(patch.defect for patch in unpatched)}. "
        "What to do: `workbench build-horovod`."
    )


def _recorded(package: metadata.Distribution) -> dict[str, Any] | None:
    text = package.read_text(RECORD_NAME)
    return json.loads(text) if text else None
