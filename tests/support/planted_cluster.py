"""A kernel with a kept cluster, hostile circumstances and planted secrets, as a process to examine.

``python planted_cluster.py [HOSTS SSH_CONFIG]`` starts the cluster, trains, lets a cell fail and
prints one line of JSON. For each line on its stdin it runs a cell and prints the values; at the end
of stdin it stops the cluster.
"""

import contextlib
import json
import os
import sys

from clusters import quiet, training

import workbench as wb


def main():
    os.umask(0)  # what is private is private by its own mode
    hosts = {"hosts": sys.argv[1], "ssh_config": sys.argv[2]} if len(sys.argv) > 1 else {"n": 2}
    keep = {} if len(sys.argv) > 1 else {"keep": "5m"}
    cluster = wb.Cluster(**hosts, **keep, start_timeout_s=300)
    cluster.start()
    try:
        quiet(cluster, training(5))
        with contextlib.suppress(wb.RanksFailed):
            quiet(cluster, "print('before the error'); raise ValueError('planned')")
        bundle = cluster.bundle(None)
        environments = quiet(cluster, "dict(__import__('os').environ)").values
        print(json.dumps({"bundle": str(bundle), "environments": environments}), flush=True)
        for line in sys.stdin:
            print(json.dumps(quiet(cluster, line).values), flush=True)
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
