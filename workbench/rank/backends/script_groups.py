"""``init_process_group()`` in a ring of Horovod, without the variables that torchrun sets."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

_DDP = (
    "This cluster connects its ranks with Horovod. Run scripts for torchrun, accelerate or "
    "Lightning in a cluster of %cluster start --backend ddp, where this call is ready"
)
_UNSET = "environment variable"
"""Part of PyTorch's message for a variable that is not set."""


def install() -> None:
    """Make errors of `init_process_group` name the cluster that a script for torchrun needs."""
    if not dist.is_available() or hasattr(dist.init_process_group, "_workbench"):
        return
    original = distributed_c10d.init_process_group

    @wraps(original)
    def init_process_group(*args: Any, **options: Any) -> None:
        """Initialize PyTorch's default process group, where a cell gives its address."""
        try:
            original(*args, **options)
        except ValueError as error:
            if _UNSET not in str(error):
                raise
            raise ValueError(
                f"init_process_group(): {_variable(error)} is not set, as torchrun would. {_DDP}."
            ) from None
        except (dist.DistNetworkError, dist.DistStoreError) as error:
            raise type(error)(f"{error}. {_DDP}.") from None

    init_process_group._workbench = True  # type: ignore[attr-defined]
    dist.init_process_group = distributed_c10d.init_process_group = init_process_group


def _variable(error: ValueError) -> str:
    """Return the name of the missing variable in PyTorch's message."""
    return str(error).partition(f"{_UNSET} ")[2].partition(" ")[0]
