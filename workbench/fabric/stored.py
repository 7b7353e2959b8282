"""Storage of calibrations on disk, with one file for each measured cluster."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from workbench.errors import SnapshotError, UsageError
from workbench.fabric.fit import FittedFabric
from workbench.resources.codec import decode
from workbench.safefiles import load_json, make_private_folder, read_file, write_private

_log = logging.getLogger(__name__)

_MAX_BYTES = 1 << 20
_MAX_SECONDS = 1e11
"""Maximum number of seconds since the epoch that is accepted as a date."""


def save(folder: Path, fabric: FittedFabric) -> Path:
    """Write a calibration and return its file; an earlier file of the same cluster is replaced."""
    path = _path(folder, fabric.context)
    make_private_folder(path.parent)
    write_private(path, json.dumps(asdict(fabric)))
    _log.info("calibration of %d ranks saved as %s", fabric.n, path.name)
    return path


def find(folder: Path, context: Mapping[str, str]) -> FittedFabric | None:
    """Return the stored calibration of a cluster, or None.

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
    """Raise `UsageError` if a calibration was not measured on a cluster with this context."""
    measured = fabric.context
    advice = "Measure this one: cluster.calibrate() or %fabric calibrate."
    if not measured:
        raise UsageError(f"This calibration does not say of which cluster it is. {advice}")
    differences = [
        f"{name}: {measured.get(name, 'unknown')} there, {context.get(name, 'unknown')} here"
        for name in {**measured, **context}
        if measured.get(name) != context.get(name)
    ]
    if differences:
        raise UsageError(
            f"This calibration is of another cluster ({'; '.join(differences)}). {advice}"
        )


def _path(folder: Path, context: Mapping[str, str]) -> Path:
    """Return the file of a cluster's calibration; its name is a hash of the cluster's context."""
    key = json.dumps(sorted(context.items()))
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    return folder / "calibrations" / f"{name}.json"


def from_plain(plain: Any) -> FittedFabric:
    """Return a calibration from the dictionary that `dataclasses.asdict` has created.

    Raises
    ------
    ValueError, SnapshotError
        The values are not those of a calibration.
    """
    fabric = decode(FittedFabric, plain, "")
    rows = [*zip(fabric.sizes_bytes, fabric.measured_us, strict=True)]
    rows += [(size, us) for size, us, _ in fabric.held_out]
    usable = (
        fabric.n >= 1
        and (len(fabric.sizes_bytes) > 0) == (fabric.n > 1)
        and all(size > 0 and us > 0 for size, us in rows)
        and min(fabric.error, fabric.disagreement, *(error for _, _, error in fabric.held_out)) >= 0
        and all(noise >= 0 for noise in fabric.held_out_noise)
        and len(fabric.knots_bytes) == len(fabric.knots_us) > 1
        and all(a < b for a, b in pairwise(fabric.knots_bytes))
        and all(a <= b for a, b in pairwise((0, *fabric.knots_us, _MAX_SECONDS * 1e6)))
        and all(rate > 0 for copies in fabric.devices.values() for rate in copies.values())
        and all(
            spread >= 0 for kinds in fabric.device_spreads.values() for spread in kinds.values()
        )
        and 0 <= fabric.measured_at < _MAX_SECONDS
    )
    if not (usable and all(fabric.predict_us(size) > 0 for size in fabric.sizes_bytes[-1:])):
        raise ValueError("its values are not those of a measurement")
    return fabric
