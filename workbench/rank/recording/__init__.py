"""Records the training iterations of a rank.

- `torch_hooks`, `module_hooks`, `loader_hooks`, `tensorflow_hooks`: report events of frameworks;
  `patches`: the base of all hooks; `compiler`: keeps PyTorch from compiling them;
  `guard`: keeps their exceptions from a training
- `recorder`: receives the reports of the hooks, and has the state of the current cell:
  `training_loop`: divides the events into iterations; `phases`: adds up the time of each
  `phase`; `device_clock`: the same on a GPU; `collectives`: when each collective was submitted
  and finished; `buckets`: unfinished collectives of torch.distributed; `waits`: waits of training;
  `batches`: samples, and the position in a loader's pass; `loads`: calls of loaders; `logged`:
  values that the cell logs
- `iteration`: a finished iteration; `pack`: makes its record for the kernel, with `durations`;
  `exchange`: whether ranks exchange gradients;
  `communication_threads`: the CPU time of the backend's threads; `sender`: sends it
"""
