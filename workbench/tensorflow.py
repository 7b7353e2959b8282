"""For cells that train with TensorFlow: an optimizer that averages gradients over the ranks."""

from __future__ import annotations

from workbench.rank.backends.keras_optimizer import distributed_optimizer as DistributedOptimizer  # noqa: N812

__all__ = ["DistributedOptimizer"]
