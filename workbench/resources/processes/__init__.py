"""Resource use of processes: Jupyter kernels, ranks, and other processes that use a GPU.

- `meter`: which processes are kernels or ranks, and their use for a sample
- `proc`: reading ``/proc``
"""
