"""Resource use of processes: Jupyter kernels, ranks, and others that use a GPU.

- `meter`: the current use of each process, for a sample
- `proc`: reading ``/proc``; `roles`: which processes are kernels or ranks;
  `rank_registry`: in which ranks register their cluster and rank number
"""
