"""Build Horovod against the installed PyTorch.

`build` compiles Horovod (or takes it from the user's cache), installs it and runs a
smoke test. `check` reports what is installed and whether it still fits PyTorch. Each
step is a module:

- `machine` inspects this machine and its PyTorch
- `operations` decides which operations are built
- `recipe`, `patches` (each a `patch`) and `compiling` build the wheel, with `commands`
- `wheels` adds the facts of the build to the wheel, and keeps the wheel in the cache
- `failures` finds the cause of a failed build in its log
- `smoke_test` tests the installed Horovod
"""

from __future__ import annotations

from workbench.horovod_build.building import Built, Request, build
from workbench.horovod_build.checking import Report, check
from workbench.horovod_build.operations import NAMES as OPERATIONS

__all__ = ["OPERATIONS", "Built", "Report", "Request", "build", "check"]
