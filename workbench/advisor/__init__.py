"""Find what slows down a training, and predict the saving of each change.

- `explain`: ranks the causes that the next modules find
- `interval`: the interval that contains the saving of a cause
- `late`, `communication`, `links`, `settings`, `transport`, `pipeline`, `host`: find causes in the
  `evidence`; `waiting` and `sampled` evaluate parts of the evidence
- `what_if`: predicts an iteration, from the model of a `measured_training`
- `verdict`: sums up a cell in one line, with the first cause
- `scaling`: measures a cell on different numbers of ranks
"""

from workbench.advisor.explain import explain
from workbench.advisor.verdict import verdict
from workbench.advisor.what_if import Prediction, what_if
from workbench.timings.verdict import Cause

__all__ = ["Cause", "Prediction", "explain", "verdict", "what_if"]
