"""Two ranks on one GPU, which NCCL refuses: what users are told before and after."""

import os
from pathlib import Path

import fake_nvml
import pytest

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import RanksFailed

ONE_GPU = """
import sys
sys.path.append({support!r})
from fake_nvml import FakeNvml, NVMLError, h100
nvml = FakeNvml(h100())
def __getattr__(name):
    return getattr(nvml, name)
"""


def test_two_ranks_on_one_gpu(tmp_path, monkeypatch):
    """A start on this machine warns and names the alternatives, as one over VMs does."""
    support = str(Path(fake_nvml.__file__).parent)
    (tmp_path / "pynvml.py").write_text(ONE_GPU.format(support=support))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    cluster = wb.Cluster(n=2, cold=True)
    with pytest.warns(RuntimeWarning, match=r"2 ranks on 1 GPU.* MIG .*Gloo") as shown, cluster:
        assert [info.gpu for info in cluster.ranks] == ["0 (NVIDIA H100 80GB HBM3)"] * 2
    assert len(shown) == 1


def test_the_error_of_nccl_on_a_shared_gpu(clean_cluster):
    """It is short, and the same on both ranks: it is shown once."""
    source = (
        "import torch.distributed as dist\n"
        "raise dist.DistBackendError('NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:"
        "94, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.7\\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\\nLast error:\\n"
        "Duplicate GPU detected : rank %d and rank %d on one CUDA device' % (rank, 1 - rank))"
    )
    with pytest.raises(RanksFailed) as caught:
        clean_cluster.run(source, sink=TextSink())
    text = str(caught.value)
    assert text.count("[ranks 0-1] DistBackendError: NCCL refuses two ranks on one GPU") == 1
    assert text.splitlines()[0].endswith("dist.init_process_group('gloo')")
