"""The expected performance of a link: cost models, and their fit to a measured sweep.

`calibration` measures the sweep, `fit` fits a line to it, and `models` has the cost models.
`planning` says what a training will cost before it runs, with the formulas in `plan_figures`
and the result in `plan_record`; `model_size` measures the model for it, and `quantities` reads
and writes its numbers. `batch_size` finds the largest batch that fits.
"""

from workbench.fabric.batch_size import largest_batch
from workbench.fabric.fit import FittedFabric, fit
from workbench.fabric.model_size import ModelSize, measure_model
from workbench.fabric.models import halving_doubling_us, ring_us, tree_us
from workbench.fabric.plan_record import Plan
from workbench.fabric.planning import plan

__all__ = [
    "FittedFabric",
    "ModelSize",
    "Plan",
    "fit",
    "halving_doubling_us",
    "largest_batch",
    "measure_model",
    "plan",
    "ring_us",
    "tree_us",
]
