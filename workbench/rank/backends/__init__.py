"""The backends of a rank, each of which joins ranks in a process group, called a ring.

- `backend`: the base class
- `ddp`: a process group of torch.distributed, which `process_groups` forms and cells may form
  themselves; `earlier_groups`: groups of the ring before, which are formed again;
  `flight_recorder`: its collectives that have not finished; `torch_waits`: the calls in which a
  thread waits; `gloo_abort`: why Gloo ends the process
- `horovod`: a Horovod ring; `cell_init`, `process_sets` and `optimizers`: replace functions of
  Horovod that do not work in a notebook; `ring_sockets`: breaks the connections of a ring;
  `horovod_thread`: notices when Horovod's thread ends; `mpi_controller`: MPI instead of Gloo below
  Horovod; `script_groups`: says which cluster a script for torchrun needs
- `horovod_tap`, `horovod_hooks`, `ddp_hooks`, `torch_collectives`, `torch_operators`: record
  collectives, and waits for them; `torch_calls`: those of torch.distributed that have not
  finished, which `torch_operations` describes; `forwarding_group`, `native_group`: the group, in
  Python and in C++, through which a DDP model sends its buckets
- `horovod_tensorflow`, `keras_optimizer`: Horovod's ops and optimizer for TensorFlow;
  `tensorflow_config`: where TensorFlow's own strategies connect
- `neutral`: runs our collectives without the modes that cells have set
- `transports`: how the libraries carry collectives

Nothing outside this package imports horovod in a rank.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.rank.backends.backend import Backend

BACKENDS = {"horovod": "HorovodBackend", "ddp": "DDPBackend"}
"""The name of each backend's class, here and in `workbench.cluster.backends`.

In both packages, the module has the name of the backend."""
DEFAULT = "horovod"


def backend_class(name: str) -> type[Backend]:
    """Import and return the class of a backend."""
    module = importlib.import_module(f"{__name__}.{name}")
    cls: type[Backend] = getattr(module, BACKENDS[name])
    return cls
