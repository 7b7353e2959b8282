"""What slows down this training, and what each change would bring.

`explain` names causes; `what_if` predicts an iteration, from the model of a `measured_training`.
"""

from workbench.advisor.cause import Cause
from workbench.advisor.explain import explain
from workbench.advisor.what_if import Prediction, what_if

__all__ = ["Cause", "Prediction", "explain", "what_if"]
