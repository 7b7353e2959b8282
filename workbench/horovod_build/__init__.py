"""Build Horovod against the installed PyTorch.

`build` compiles Horovod (or takes it from the user's cache), installs it and runs a
smoke test; `check` reports what is installed and whether it still fits PyTorch. Each
step is a module:

- `torchinfo` and `machine` inspect PyTorch and this machine
- `operations` decides which operations are built
- `key` and `cache` find a wheel that was built before
- `recipe`, `patches` (each a `patch`) and `compiling` build the wheel
- `diagnosis` finds the cause of a failed build in its log
- `wheelrecord` writes into the wheel what it was built against
- `installing` installs it, and `smoke_test` tests it
"""

from __future__ import annotations

from workbench.horovod_build.building import Built, Request, build
from workbench.horovod_build.checking import Report, check
from workbench.horovod_build.operations import NAMES as OPERATIONS

__all__ = ["OPERATIONS", "Built", "Report", "Request", "build", "check"]
