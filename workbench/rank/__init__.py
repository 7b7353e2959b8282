"""All that runs inside a rank.

- `agent`: the process that starts a VM's ranks; `children`: those ranks, forked
  from it; `reach`: its VM's network
- `session`: what a rank holds from joining a cluster to leaving it
- `cell`: runs one cell; `output`, `descriptors`: send what it prints and shows
- `sockets`: breaks a ring whose peer is gone
- `control`: answers the kernel while the main thread is busy or blocked
- `recorder`: one record per iteration, from `phases`, `collectives` and
  `cycle`; `pack` adds it up, `records` sends several at once, both in a thread of
  their own
- `torch_hooks`, `module_hooks`, `horovod_hooks`: where the recorder gets its
  events; `patches` puts back what they replaced
"""
