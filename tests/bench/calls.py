"""CPU time of the thread that calls ``dist.all_reduce``, with its recording and without.

One rank, which waits for nobody, and four numbers: what is compared is the call itself.
"""

import tempfile
import time
from pathlib import Path

from tests.bench.bounds import sized
from tests.bench.stats import spread

ROUNDS = sized(60, 2)
CALLS = sized(200, 20)


def measure():
    """Print the time of a call without recording, and what recording adds; no bound is set."""
    import torch
    import torch.distributed as dist

    from workbench.rank.backends.torch_calls import TorchCalls
    from workbench.rank.backends.torch_collectives import TorchCollectives
    from workbench.rank.recording.recorder import Recorder

    recorder = Recorder(lambda handle: True, lambda recorded: None)
    hooks = TorchCollectives(recorder, TorchCalls(recorder))
    tensor = torch.ones(4)

    def cpu_us():
        began = time.thread_time_ns()
        for _ in range(CALLS):
            dist.all_reduce(tensor)
        recorder.loop.steps += 1
        recorder.reported.take(1 << 62)
        return (time.thread_time_ns() - began) / CALLS / 1e3

    with tempfile.TemporaryDirectory() as folder:
        ring = f"file://{Path(folder) / 'ring'}"
        dist.init_process_group("gloo", init_method=ring, rank=0, world_size=1)
        plain, added = [], []
        try:
            for _ in range(ROUNDS):
                plain.append(cpu_us())
                hooks.install()
                added.append(cpu_us() - plain[-1])
                hooks.remove()
        finally:
            dist.destroy_process_group()
    print(f"without recording {spread(plain)} us; recording adds {spread(added)} us")
    return ()
