"""Write into a wheel what it was built against."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import zipfile
from typing import TYPE_CHECKING, Any

from workbench.horovod_build.key import RECORD_NAME

if TYPE_CHECKING:
    from pathlib import Path


def add_record(wheel: Path, facts: dict[str, Any]) -> None:
    """Add the facts to the wheel's ``dist-info``, listed in its ``RECORD``.

    pip then installs and removes the file together with the package, so that the facts
    always belong to the installed Horovod.
    """
    text = json.dumps(facts, indent=1, sort_keys=True).encode()
    fresh = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as new:
        record = next(name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        name = record.removesuffix("RECORD") + RECORD_NAME
        for entry in old.infolist():
            if entry.filename != record:
                new.writestr(entry, old.read(entry))
        new.writestr(name, text)
        new.writestr(record, _listed(old.read(record).decode(), name, text))
    fresh.replace(wheel)


def _listed(record: str, name: str, content: bytes) -> str:
    """Return the text of `RECORD` with a row for one more file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    row = io.StringIO()
    csv.writer(row, lineterminator="\n").writerow([name, f"sha256={digest}", len(content)])
    return record.rstrip("\n") + "\n" + row.getvalue()
