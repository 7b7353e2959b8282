"""What slows down this training, and what each change would bring.

- `explain`: ranks the causes that the next modules find
- `interval`: where the saving of a cause lies
- `late`, `communication`, `links`, `settings`, `transport`, `pipeline`, `host`: find causes in the
  `evidence`; `waiting` and `sampled` are parts of it
- `what_if`: predicts an iteration, from the model of a `measured_training`
- `verdict`: sums up a cell in one line, with the first cause
- `scaling`: measures a cell on different numbers of ranks
"""

from workbench.advisor.explain import explain
from workbench.advisor.verdict import verdict
from workbench.advisor.what_if import Prediction, what_if
from workbench.timings.verdict import Cause

__all__ = ["Cause", "Prediction", "explain", "verdict", "what_if"]
