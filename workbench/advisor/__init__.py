"""What slows down this training, and what each change would bring.

`explain` names causes, and `verdict` sums up a cell in one line with the first of them. `what_if`
predicts an iteration, from the model of a `measured_training`.
"""

from workbench.advisor.cause import Cause
from workbench.advisor.explain import explain
from workbench.advisor.verdict import verdict
from workbench.advisor.what_if import Prediction, what_if

__all__ = ["Cause", "Prediction", "explain", "verdict", "what_if"]
