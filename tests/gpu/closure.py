"""Check that every requirement of the wheels in a folder is met on the GPU machine.

    python closure.py WHEELS INSTALLED PYTHON_VERSION

A requirement is met by another wheel of the folder, whose version must fit, or by a name in the
file INSTALLED, whose versions are not known. The requirements of the product are checked too,
without those of JupyterLab, which no rank and no kernel needs. Needs the package `packaging`.
"""

from __future__ import annotations

import sys
import zipfile
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

NOT_NEEDED = {"jupyter-server", "jupyterlab"}


def requirements(wheel: Path, python: str) -> list[Requirement]:
    """Return the requirements of a wheel that apply to the GPU machine's Python."""
    machine = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    with zipfile.ZipFile(wheel) as packed:
        name = next(one for one in packed.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(packed.read(name).decode())
    found = map(Requirement, metadata.get_all("Requires-Dist", []))
    return [one for one in found if one.marker is None or one.marker.evaluate(machine)]


def of_product() -> list[Requirement]:
    """Return the requirements in the pyproject.toml of the current folder."""
    lines = Path("pyproject.toml").read_text(encoding="utf-8").split("dependencies = [", 1)[1]
    texts = (line.strip(' ",') for line in lines.split("\n]", 1)[0].splitlines())
    return [Requirement(text) for text in texts if text]


def main() -> int:
    """Check, and print what is missing."""
    folder, listed, python = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    installed = {
        canonicalize_name(name)
        for line in listed.read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
        for name in line.split()
    }
    wheels = {parse_wheel_filename(one.name)[0]: one for one in sorted(folder.glob("*.whl"))}
    versions = {name: parse_wheel_filename(one.name)[1] for name, one in wheels.items()}
    needed = [("the product", one) for one in of_product()]
    needed += [(name, one) for name, wheel in wheels.items() for one in requirements(wheel, python)]
    missing = []
    for by, need in needed:
        name = canonicalize_name(need.name)
        if name in versions:
            if not need.specifier.contains(versions[name], prereleases=True):
                missing.append(f"{by} needs {need}, but the folder has {name} {versions[name]}")
        elif name not in installed and name not in NOT_NEEDED:
            missing.append(f"{by} needs {need}, which is nowhere")
    print("\n".join(missing) or f"{len(wheels)} wheels, {len(needed)} requirements: all are met")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
