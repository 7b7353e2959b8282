"""What we do on the ranks works the same whatever state a cell has left there."""

import pytest
import torch
from clusters import quiet
from levels import in_soak

import workbench as wb

STATES = {
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "another default dtype on one rank": (
        "torch.set_default_dtype(torch.float32 if rank else torch.float16)"
    ),
    "default device": "torch.set_default_device('meta')",
    "no gradients": "torch.set_grad_enabled(False)",
    "inference mode": "mode = torch.inference_mode(); mode.__enter__()",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "a mode of functions": """
from torch.overrides import TorchFunctionMode
class Refuses(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        raise RuntimeError("not without the user")
refuses = Refuses(); refuses.__enter__()
""",
    "names": "world_size = rank = local_rank = device = hvd = dist = torch = time = print = None",
    "modules": """
import sys
for name in [*sys.modules]:
    if name.partition(".")[0] == "workbench": del sys.modules[name]
sys.modules["horovod"] = None
""",
    "locale": "import locale; locale.setlocale(locale.LC_ALL, 'C')",
    "warnings": "import warnings; warnings.simplefilter('error')",
    "folder": """
import os, tempfile
folder = tempfile.mkdtemp(); os.chdir(folder); os.rmdir(folder)
""",
    "streams": """
import os, sys
sys.stdin.close(); sys.stdout.close(); sys.stderr.close()
sys.stdin = sys.stdout = sys.stderr = None
""",
}
ORDER = [name for name in STATES if name not in {"another default dtype on one rank", "streams"}]
EVERYTHING = "import torch\n" + "\n".join(
    STATES[name] for name in sorted(ORDER, key=lambda name: name == "names")
)


@pytest.fixture(scope="module", params=["horovod", "ddp"])
def ranks(request):
    """Two ranks that each test may leave in any state."""
    cluster = wb.Cluster(n=2, backend=request.param)
    cluster.start()
    yield cluster
    cluster.stop()


KEPT = {
    "horovod": "leave, size = hvd.shutdown, hvd.size",
    "ddp": "leave, size = dist.destroy_process_group, dist.get_world_size",
}


@pytest.mark.parametrize(
    "state",
    [pytest.param(EVERYTHING, id="everything")]
    + [in_soak(f"import torch\n{source}", id=name) for name, source in STATES.items()],
)
def test_measurements_transfers_and_another_ring(ranks, state):
    """They name all that they use, and what arrives is what was sent."""
    cluster = ranks
    quiet(cluster, KEPT[cluster.options.backend])
    quiet(cluster, state)
    try:
        fabric = cluster.calibrate(seconds=0.5, show_progress=False)
        assert fabric.sizes_bytes[0] == 4096
        assert fabric.busbw_gbps > 0
        assert len(cluster.bandwidth_matrix().alone_gbps) == 2
        sent = torch.arange(6, dtype=torch.int16).view(2, 3)
        cluster.push({"sent": sent, "layer": torch.nn.Linear(2, 2)})
        pulled = cluster.pull(["sent", "layer"])
        assert all(torch.equal(values["sent"], sent) for values in pulled.values())
        assert all(values["layer"].weight.requires_grad for values in pulled.values())
        quiet(cluster, "leave()")  # after which the ring is formed again
        assert quiet(cluster, "size()").values == {0: 2, 1: 2}
    finally:
        cluster.restart(ranks=[0, 1])
