"""Kernels that start a cluster which outlives them, and end."""

import forked_kernels
import psutil
from clusters import training, with_support
from timers import PROCESS_S

KERNEL = """
import os, sys, time
import workbench as wb
from workbench.cluster import TextSink
cluster = wb.Cluster({arguments}).start()
cluster.run('''
import time
kept = rank * 10
{training}
''', sink=TextSink())
print(cluster.name, *[info.pid for info in cluster.ranks], flush=True)
{then}
"""
TRAINING = training(5)
KILLED = "os.kill(os.getpid(), 9)"
IN_A_CELL = """
from clusters import BeginSink
sink = BeginSink()
cluster.run_in_background(sink.PRINT + {source!r}, sink=sink)
while not sink.begun(): time.sleep(0.02)
time.sleep(0.3)
os.kill(os.getpid(), 9)
"""

IN_A_CHANGE = """
import threading
from workbench.cluster.engines import Engines
from workbench.cluster.processes import ClusterProcesses
call_ranks = Engines.call
def call(engines, name, *given, **options):
    if name == {step!r}:
        threading.Timer(0.05, os.kill, (os.getpid(), 9)).start()
    return call_ranks(engines, name, *given, **options)
Engines.call = call
ClusterProcesses.save = lambda _: time.sleep(600)
{change}
"""


def kernel(then, arguments="n=2, keep='600s'", script=TRAINING):
    """Run a kernel to its end; return the cluster's name and the ranks' processes."""
    source = KERNEL.format(arguments=arguments, then=then, training=script)
    done = forked_kernels.run(source, with_support(), PROCESS_S)
    assert done.stdout, done.stderr
    name, *pids = done.stdout.split()
    return name, [int(pid) for pid in pids]


def controllers(runtime):
    """The controllers of this test's clusters."""
    every = psutil.process_iter(["cmdline"])
    return [one for one in every if str(runtime) in " ".join(one.info["cmdline"] or [])]
