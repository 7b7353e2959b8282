"""Evidence bundles: one file with everything that is known about a failure of the ranks.

- `recorder`: when a bundle is written, and where; `states`: the ranks' states, which their control
  threads report
- `collect`: the bundle of a live cluster; `stored`: that of a recorded run
- `bundle`: the zip file
- parts: `ranks`, `timings`, `vms`
"""
