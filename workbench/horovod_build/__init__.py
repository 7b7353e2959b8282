"""Builds Horovod against the PyTorch that is there.

`build` compiles (or takes from the user's cache), installs and proves;
`check` says what is installed and whether it still fits. The steps, a module
each: `torchinfo` and `machine` look at what is there, `operations` settles what
is built, `key` and `cache` know whether it was built before, `recipe`, `cures`
and `compiling` build it, `causes` reads the log where that fails, `wheelrecord`
writes down what it was built against, `installing` installs, `proof` proves.
"""

from __future__ import annotations

from workbench.horovod_build.building import Built, Request, build
from workbench.horovod_build.checking import Report, check
from workbench.horovod_build.operations import NAMES as OPERATIONS

__all__ = ["OPERATIONS", "Built", "Report", "Request", "build", "check"]
