"""What Horovod is installed, and whether it still fits the PyTorch beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from workbench.horovod_build.cures import CURES, lacking
from workbench.horovod_build.key import RECORD_NAME

if TYPE_CHECKING:
    from workbench.horovod_build.cures import Cure

_PROBE = """
import json, torch
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
print("BUILT " + json.dumps([name for name, there in built.items() if there]))
"""


@dataclass(frozen=True)
class Report:
    """What `check` found.

    Attributes
    ----------
    version
        Of the installed Horovod; None where there is none.
    built
        The facts that `workbench build-horovod` wrote into it; None where
        somebody else built it.
    built_against
        The PyTorch that it was built against; None where that is not recorded.
    torch
        The PyTorch that is there now; None where it does not import.
    operations
        As the library itself says; empty where it does not import.
    uncured
        Names of the cures (`cures.CURES`) that it is not recorded to have.
    trouble
        Why it should be built anew, with what to do; None where it fits.
    """

    version: str | None
    built: dict[str, Any] | None = None
    built_against: str | None = None
    torch: str | None = None
    operations: tuple[str, ...] = ()
    uncured: tuple[str, ...] = ()
    trouble: str | None = None

    @property
    def fits(self) -> bool:
        """Whether it can be used as it is, with the PyTorch that is there."""
        return self.trouble is None

    def describe(self) -> str:
        """Return the report in a few lines for a person."""
        if self.version is None:
            return f"Horovod is not installed.\n{self.trouble}"
        by = "by workbench build-horovod" if self.built else "by something else"
        against = self.built_against or "a PyTorch that is not recorded"
        lines = [
            f"Horovod {self.version}, built {by} against PyTorch {against}.",
            f"PyTorch now: {self.torch or 'it does not import'}.",
            f"Operations: {', '.join(self.operations) or 'not known, it does not import'}.",
            f"Cures: {self._cures()}.",
            self.trouble or "It fits.",
        ]
        if self.built:
            lines.insert(1, f"Compiler: {self.built.get('compiler', 'not recorded')}.")
        return "\n".join(lines)

    def _cures(self) -> str:
        """Spell which of Horovod's known defects are cured in it."""
        there = [cure.name for cure in CURES if cure.name not in self.uncured]
        without = f"without {', '.join(self.uncured)}" if self.uncured else ""
        return "; ".join(part for part in (", ".join(there), without) if part)


def check() -> Report:
    """Look at the installed Horovod and really import it, in a fresh interpreter."""
    try:
        package = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return Report(None, trouble="What to do: `workbench build-horovod`.")
    tried = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False, timeout=300
    )
    facts = _said(tried.stdout, "FACTS ") or {}
    built = _recorded(package)
    against = (built or {}).get("torch") or facts.get("metadata", {}).get("pytorch")
    operations = _said(tried.stdout, "BUILT ")
    now = facts.get("torch")
    uncured = lacking(built)
    return Report(
        version=package.version,
        built=built,
        built_against=against,
        torch=now,
        operations=tuple(operations or ()),
        uncured=tuple(cure.name for cure in uncured),
        trouble=_trouble(operations is not None, tried.stderr, against, now)
        or _uncured_trouble(uncured),
    )


def _trouble(imports: bool, stderr: str, against: str | None, now: str | None) -> str | None:
    if not imports:
        last = (stderr.strip().splitlines() or ["no output"])[-1][:300]
        return (
            f"It does not fit: it does not import ({last}). What to do: `workbench build-horovod`."
        )
    if against is not None and against != now:
        return (
            f"It does not fit: it was built against PyTorch {against}, here is {now}. It imports, "
            "but PyTorch's C++ interface differs between releases, and memory laid out for "
            "another is read wrongly without a word. What to do: `workbench build-horovod`."
        )
    return None


def _uncured_trouble(uncured: list[Cure]) -> str | None:
    if not uncured:
        return None
    return (
        "It imports, but should be rebuilt, since it is not recorded as cured of: "
        f"{'; '.join(cure.defect for cure in uncured)}. What to do: `workbench build-horovod`."
    )


def _recorded(package: metadata.Distribution) -> dict[str, Any] | None:
    text = package.read_text(RECORD_NAME)
    return json.loads(text) if text else None


def _said(output: str, mark: str) -> Any:
    """Return the JSON behind `mark` in a probe's output, or None."""
    for line in output.splitlines():
        if line.startswith(mark):
            return json.loads(line.removeprefix(mark))
    return None
