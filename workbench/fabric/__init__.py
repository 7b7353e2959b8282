"""The expected performance of a link: cost models, and their fit to a measured sweep.

`calibration` measures the sweep, `fit` fits a line to it, `models` has the cost models, and
`overlap` simulates an iteration with them.
"""

from workbench.fabric.fit import FittedFabric, fit
from workbench.fabric.models import halving_doubling_us, ring_us, tree_us

__all__ = ["FittedFabric", "fit", "halving_doubling_us", "ring_us", "tree_us"]
