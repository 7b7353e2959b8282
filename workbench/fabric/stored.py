"""Calibrations on disk, one file for each cluster on which they were measured."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from workbench.errors import UsageError
from workbench.fabric.fit import FittedFabric
from workbench.safefiles import load_json, read_file, write_private

_MOST_BYTES = 1 << 20


def save(folder: Path, fabric: FittedFabric) -> Path:
    """Write a calibration, in place of an earlier one of the same cluster; return its file."""
    path = _path(folder, fabric.context)
    path.parent.mkdir(parents=True, exist_ok=True)
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
        return from_plain(load_json(read_file(path, _MOST_BYTES)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
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
    ValueError, TypeError, AttributeError, LookupError
        It is no calibration.
    """
    if not isinstance(plain, dict):
        raise ValueError("not a JSON object")
    numbers = ("sizes_bytes", "measured_us", "knots_bytes", "knots_us")
    given = plain | {name: tuple(plain[name]) for name in numbers}
    given["held_out"] = tuple((size, us, error) for size, us, error in plain["held_out"])
    given["held_out_noise"] = tuple(plain.get("held_out_noise", ()))
    fabric = FittedFabric(**given)
    figures = [
        *(fabric.n, fabric.error, fabric.disagreement, fabric.measured_at),
        *(value for name in numbers for value in given[name]),
        *(value for row in fabric.held_out for value in row),
        *fabric.held_out_noise,
        *(rate for copies in fabric.devices.values() for rate in copies.values()),
    ]
    usable = (
        all(isinstance(value, int | float) and math.isfinite(value) for value in figures)
        and all(isinstance(text, str) for text in fabric.context.values())
        and all(a < b for a, b in pairwise(fabric.knots_bytes))
        and len(fabric.knots_bytes) == len(fabric.knots_us) > 1
        and len(fabric.sizes_bytes) == len(fabric.measured_us) > 0
    )
    if not (usable and fabric.n > 1 and fabric.predict_us(fabric.sizes_bytes[-1]) > 0):
        raise ValueError("its values are not those of a measurement")
    return fabric
