"""The backends of a rank. Each backend joins ranks in a process group, called a ring.

- `backend`: the base class
- `ddp`: a process group of torch.distributed; `process_groups`: forms and destroys groups, for
  the ring and for cells; `earlier_groups`: forms the groups of the previous ring again;
  `flight_recorder`: unfinished collectives; `torch_waits`: the calls that a thread waits in;
  `gloo_abort`: reports why Gloo ends the process
- `horovod`: a Horovod ring; `cell_init`, `process_sets` and `optimizers`: replace functions of
  Horovod that do not work in a notebook; `ring_sockets`: breaks the connections of a ring;
  `horovod_thread`: notices when Horovod's thread ends; `mpi_controller`: MPI instead of Gloo below
  Horovod; `script_groups`: names the cluster that a script for torchrun needs
- `horovod_tap`, `horovod_hooks`, `ddp_hooks`, `torch_collectives`, `torch_operators`: record
  collectives, and waits for them; `torch_calls`: unfinished collectives of torch.distributed;
  `torch_operations`: describes them; `forwarding_group`, `native_group`: the group, in Python and
  in C++, that forwards the buckets of a DDP model
- `horovod_tensorflow`, `keras_optimizer`: Horovod's ops and optimizer for TensorFlow;
  `tensorflow_config`: addresses for TensorFlow's own strategies
- `neutral`: runs our collectives without the modes that cells have set
- `transports`: transports that carry collectives

Nothing outside this package imports horovod in a rank.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.rank.backends.backend import Backend

BACKENDS = {"horovod": "HorovodBackend", "ddp": "DDPBackend"}
"""The name of each backend's class. Its module has the name of the backend."""
DEFAULT = "horovod"


def backend_class(name: str) -> type[Backend]:
    """Import and return the class of a backend.

    Raises
    ------
    KeyError
        No backend has this name.
    """
    module = importlib.import_module(f"{__name__}.{name}")
    cls: type[Backend] = getattr(module, BACKENDS[name])
    return cls
