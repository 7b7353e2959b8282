"""All that runs inside a rank.

- `__main__`: the process: an ipyparallel engine that dies with its parent
- `session`: what a rank holds from joining a cluster to leaving it
- `cell`: runs one cell; `output`, `descriptors`: send what it prints and shows
- `control`: answers the kernel while the main thread is busy or blocked
- `recorder`: one record per iteration, from `phases`, `collectives` and
  `cycle`; `pack` adds it up, `records` sends several at once, both in a thread of
  their own
- `torch_hooks`, `module_hooks`, `horovod_hooks`: where the recorder gets its
  events; `patches` puts back what they replaced
"""
