"""Horovod ranks without a cluster, for what only Horovod itself can show."""

import os
import subprocess
import sys
from contextlib import contextmanager

from workbench.horovod_build.commands import end_group

# Ranks on one host, as many as the third argument says, each running the code that is the fourth.
LAUNCH = """
import contextlib, os, subprocess, sys
from workbench.cluster.backends.horovod import Rendezvous, assign

address, interface, n, code = sys.argv[1:]
with contextlib.closing(Rendezvous(assign(["here"] * int(n)), address)) as ring:
    ring.start()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | ring.environment(rank, interface) | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(int(n))
    ]
    statuses = [rank.wait() for rank in ranks]
sys.exit(max(map(abs, statuses)))
"""


@contextmanager
def two_ranks(code, *, n=2, address="127.0.0.1", interface="lo", inside=(), **env):
    """Two ranks, or `n`, while the body runs, in the namespaces that the command `inside` makes."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    clean.pop("PYTHONUNBUFFERED", None)  # all write to one pipe: a print must be one write
    process = subprocess.Popen(
        [*inside, sys.executable, "-c", LAUNCH, address, interface, str(n), code],
        env=clean | env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        end_group(process)
