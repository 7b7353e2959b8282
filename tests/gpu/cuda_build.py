"""Start ranks with a build of PyTorch for CUDA, and check that they could use a GPU.

    python cuda_build.py FOLDER

PyTorch is installed into FOLDER, with its libraries of NVIDIA (some GB), unless it is there
already. No GPU is needed. A build without CUDA does not show that a process has been forked after
CUDA was touched.
"""

import os
import subprocess
import sys
from pathlib import Path

VERSION = "2.11.0"
CHECK = """
import workbench as wb
where = "import torch; c = torch.cuda; (torch.version.cuda, c._is_in_bad_fork(), c.is_available())"
for options in ({}, {}, {"cold": True}):  # the second start is forked from the warm process
    with wb.Cluster(n=2, backend="ddp", start_timeout_s=300, **options) as cluster:
        found = cluster.run(where, timeout=100).values
        print(options, found, flush=True)
        for cuda, bad_fork, _ in found.values():
            assert cuda, "this PyTorch was built without CUDA"
            assert not bad_fork, "CUDA was touched before the ranks were forked"
"""


def main() -> int:
    """Install PyTorch, start ranks, and return the exit status."""
    folder = Path(sys.argv[1]).resolve()
    if not (folder / "torch").is_dir():
        print(f"==> PyTorch {VERSION} for CUDA, in {folder}", flush=True)
        pip = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check"]
        given = ["install", "-q", "--no-compile", "--target", str(folder), f"torch=={VERSION}"]
        subprocess.run([*pip, *given], check=True, timeout=1800)
    print(
        "==> two ranks: CUDA's version, whether the fork was bad, whether there is a GPU",
        flush=True,
    )
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", CHECK], env=environment, check=False, timeout=600
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
