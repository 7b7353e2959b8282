"""Processes of this machine: which kernels, ranks and others take what of it.

- `meter`: what each takes now, for a sample
- `proc`: processes as the kernel shows them; `roles`: what one is to a notebook;
  `rank_notices`: which rank it is, as it says itself
"""
