"""Evidence bundles: each is one file with all that is known about a failure of the ranks.

- `recorder`: decides when and where a bundle is written; `states`: the ranks' states, which their
  control threads report
- `collect`: the bundle of a running cluster; `stored`: the bundle of a recorded run
- `bundle`: the zip file
- `ranks`, `timings`, `vms`: parts of a bundle
"""
