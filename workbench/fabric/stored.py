"""Calibrations on disk, one file for each cluster on which they were measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from workbench.errors import SnapshotError, UsageError
from workbench.fabric.fit import FittedFabric
from workbench.resources.codec import decode
from workbench.safefiles import load_json, make_private_folder, read_file, write_private

_MAX_BYTES = 1 << 20
_MAX_SECONDS = 1e11
"""More since the epoch is no date."""


def save(folder: Path, fabric: FittedFabric) -> Path:
    """Write a calibration, in place of an earlier one of the same cluster; return its file."""
    path = _path(folder, fabric.context)
    make_private_folder(path.parent)
    write_private(path, json.dumps(asdict(fabric)))
    return path


def find(folder: Path, context: Mapping[str, str]) -> FittedFabric | None:
    """Return the calibration of a cluster; None if none is stored.

    Raises
    ------
    UsageError
        The file is damaged.
    """
    path = _path(folder, context)
    try:
        return from_plain(load_json(read_file(path, _MAX_BYTES)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, SnapshotError) as error:
        raise UsageError(
            f"{path}: not a calibration ({error}). Remove it, and run cluster.calibrate() again."
        ) from error


def check(fabric: FittedFabric, context: Mapping[str, str]) -> None:
    """Raise `UsageError` if a calibration was not measured on such a cluster."""
    own, measure = fabric.context, "Measure this one: cluster.calibrate() or %fabric calibrate."
    if not own:
        raise UsageError(f"This calibration does not say of which cluster it is. {measure}")
    different = [
        f"{what}: {own.get(what, 'unknown')} there, {context.get(what, 'unknown')} here"
        for what in {**own, **context}
        if own.get(what) != context.get(what)
    ]
    if different:
        raise UsageError(
            f"This calibration is of another cluster ({'; '.join(different)}). {measure}"
        )


def _path(folder: Path, context: Mapping[str, str]) -> Path:
    key = json.dumps(sorted(context.items()))
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    return folder / "calibrations" / f"{name}.json"


def from_plain(plain: Any) -> FittedFabric:
    """Return the calibration that `asdict` has made plain.

    Raises
    ------
    ValueError, SnapshotError
        It is no calibration.
    """
    fabric = decode(FittedFabric, plain, "")
    rows = [*zip(fabric.sizes_bytes, fabric.measured_us, strict=True)]
    rows += [(size, us) for size, us, _ in fabric.held_out]
    usable = (
        fabric.n >= 1
        and (len(fabric.sizes_bytes) > 0) == (fabric.n > 1)
        and all(size > 0 and us > 0 for size, us in rows)
        and min(fabric.error, fabric.disagreement, *(one for _, _, one in fabric.held_out)) >= 0
        and all(one >= 0 for one in fabric.held_out_noise)
        and len(fabric.knots_bytes) == len(fabric.knots_us) > 1
        and all(a < b for a, b in pairwise(fabric.knots_bytes))
        and all(a <= b for a, b in pairwise((0, *fabric.knots_us, _MAX_SECONDS * 1e6)))
        and all(rate > 0 for copies in fabric.devices.values() for rate in copies.values())
        and all(rate >= 0 for each in fabric.device_spreads.values() for rate in each.values())
        and 0 <= fabric.measured_at < _MAX_SECONDS
    )
    if not (usable and all(fabric.predict_us(size) > 0 for size in fabric.sizes_bytes[-1:])):
        raise ValueError("its values are not those of a measurement")
    return fabric
