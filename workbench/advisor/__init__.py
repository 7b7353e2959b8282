"""What slows this training, and what each change would bring."""

from workbench.advisor.cause import Cause
from workbench.advisor.explain import explain

__all__ = ["Cause", "explain"]
