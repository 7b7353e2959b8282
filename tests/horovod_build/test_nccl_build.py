"""Horovod's patched source compiled for a GPU, and a real device that records its collectives."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from nccl_sources import NcclSources
from timers import BUILD_S

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="it compiles"),
    pytest.mark.skipif(find_spec("horovod") is None, reason="no Horovod is installed here"),
    pytest.mark.timeout(300),
]


def test_the_patched_files_compile_for_a_gpu(tmp_path):
    """With the definitions of a build with NCCL, and the headers of CUDA and NCCL."""
    sources = NcclSources(tmp_path / "horovod")
    operations = ("nccl_operations.cc", "cuda_operations.cc", "gpu_operations.cc")
    sources.check("operations.cc", *(f"ops/{name}" for name in operations))


ONE_RANK = """
import json, sys, time
import horovod.torch as hvd
import torch
from workbench.rank.backends.horovod_tap import Tap

device = sys.argv[1]
hvd.init()
tap = Tap.open({})
tap.record()
matrix = torch.ones(2048, 2048, device=device)
for _ in range(3):
    computed = sum(matrix @ matrix for _ in range(5))
    handles = [hvd.allreduce_async(computed, name=f"t{n}", op=hvd.Sum) for n in range(3)]
    for handle in handles:
        hvd.synchronize(handle)
done = tap.take(time.perf_counter_ns())
libraries = [operation.library for operation in done.operations]
print(json.dumps([libraries, done.times.tolist()]))
"""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_real_device_records_its_transfers(device):
    """All times are known, and in their order."""
    from horovod.torch import mpi_ops

    if device == "cuda" and not (torch.cuda.is_available() and mpi_ops.nccl_built()):
        pytest.skip("there is no GPU, or Horovod is built without NCCL")
    if device == "cpu" and not mpi_ops.gloo_built():
        pytest.skip("Horovod is built without Gloo")
    command = [sys.executable, "-c", ONE_RANK, device]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=BUILD_S)
    libraries, times = json.loads(done.stdout.splitlines()[-1])
    assert set(libraries) == {"NCCL_ALLREDUCE" if device == "cuda" else "GLOO_ALLREDUCE"}
    assert len(libraries) == 9
    assert all(list(one) == sorted(one) for one in zip(*times, strict=True))
