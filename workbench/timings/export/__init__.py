"""Export of timings: Perfetto, HolisticTraceAnalysis, TensorBoard, MLflow and Prometheus.

`TimingsQueries` has a method for each tool that writes files or sends metrics. The modules read
any `TimingsSource`; `iterations` reads it one iteration at a time.
"""
