"""Timings for other tools: Perfetto, HolisticTraceAnalysis, TensorBoard, MLflow, Prometheus.

`TimingsQueries` has a method for each. The modules read any `TimingsSource`;
`iterations` reads it one iteration at a time.
"""
