"""What slows this training, and what each change would bring."""

from workbench.advisor.explain import Cause, explain

__all__ = ["Cause", "explain"]
