"""For cells that train with TensorFlow: an optimizer that averages gradients over the ranks."""

from __future__ import annotations

from workbench.rank.backends.keras_optimizer import distributed_optimizer as DistributedOptimizer

__all__ = ["DistributedOptimizer"]
