"""The two ranks of the smoke test, as a script.

Without an argument it serves the rendezvous and starts itself twice, once for each rank.
With a rank as argument it runs that rank. It is started by its path, so it imports
nothing from this package.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIZE = 2
_RECORDS = 16
_RECORD_BYTES = 88


def main() -> int:
    """Run the rank in the first argument, or start both ranks."""
    if len(sys.argv) > 1:
        return _run_rank(int(sys.argv[1]))
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(0)
    port = server.start()
    plan = get_host_assignments(parse_hosts(f"localhost:{_SIZE}"), _SIZE)
    server.init(plan)
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(rank)], env=_rank_environment(rank, port))
        for rank in range(_SIZE)
    ]
    return max(abs(rank.wait()) for rank in ranks)


def _rank_environment(rank: int, port: int) -> Mapping[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    return clean | {
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(_SIZE),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(_SIZE),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def _run_rank(rank: int) -> int:
    import horovod.torch as hvd
    import torch
    from horovod.torch import mpi_ops

    library = mpi_ops._basics.MPI_LIB_CTYPES
    library.horovod_tap_enable(ctypes.c_int64(_RECORDS))
    hvd.init()
    tensor = torch.arange(1024, dtype=torch.float64) * (rank + 1)
    total = hvd.allreduce(tensor, op=hvd.Sum, name="smoke_test")
    expected = torch.arange(1024, dtype=torch.float64).sum().item() * sum(range(1, _SIZE + 1))
    records = ctypes.create_string_buffer(_RECORDS * _RECORD_BYTES)
    recorded = library.horovod_tap_read(records, ctypes.c_int64(_RECORDS))
    result = {
        "rank": hvd.rank(),
        "sum": total.sum().item(),
        "expected": expected,
        "recorded": recorded,
    }
    hvd.shutdown()
    # A single write, so that the lines of the two ranks do not mix.
    os.write(1, f"RANK {json.dumps(result)}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
