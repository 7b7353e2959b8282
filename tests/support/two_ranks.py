"""Two Horovod ranks without a cluster, for what only Horovod itself can show."""

import os
import subprocess
import sys
from contextlib import contextmanager

from workbench.horovod_build.commands import end_group

# Two ranks on one host, each running the code that the third argument is.
LAUNCH = """
import contextlib, os, subprocess, sys
from workbench.cluster.backends.horovod import Rendezvous, assign

address, interface, code = sys.argv[1:]
with contextlib.closing(Rendezvous(assign(["here", "here"]), address)) as ring:
    ring.start()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | ring.environment(rank, interface) | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    statuses = [rank.wait() for rank in ranks]
sys.exit(max(map(abs, statuses)))
"""


@contextmanager
def two_ranks(code, *, address="127.0.0.1", interface="lo", inside=(), **env):
    """Two ranks while the body runs, in the namespaces that the command `inside` makes."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    clean.pop("PYTHONUNBUFFERED", None)  # both write to one pipe: a print must be one write
    process = subprocess.Popen(
        [*inside, sys.executable, "-c", LAUNCH, address, interface, code],
        env=clean | env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        end_group(process)
