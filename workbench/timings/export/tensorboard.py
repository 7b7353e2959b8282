"""Scalars for TensorBoard, by PyTorch's writer."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import UsageError
from workbench.timings.export.scalars import series

if TYPE_CHECKING:
    from workbench.timings.export.door import Exports


def write(run: Exports, folder: str | os.PathLike[str], per_rank: bool) -> Path:
    """Write them; see `Exports.to_tensorboard`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            f"Cannot export to TensorBoard: {error}. Install it with pip install tensorboard."
        ) from None
    folder, now = Path(folder), time.time()
    for one in series(run, per_rank):
        with SummaryWriter(str(folder / one.name)) as writer:
            for name, values in one.scalars.items():
                tag = f"workbench/{name}"
                for step, at, value in zip(
                    one.steps.tolist(), one.ends_s.tolist(), values.tolist(), strict=True
                ):
                    if not math.isnan(value):
                        writer.add_scalar(tag, value, step, walltime=now + at)
    return folder
