"""Timings for other tools: Arrow, Perfetto, HolisticTraceAnalysis, TensorBoard, MLflow, Prometheus.

`door.Exports` has a method for each; whatever holds timings inherits it.
"""

from workbench.timings.export.door import Exports

__all__ = ["Exports"]
