"""Planted delays, causes and changes: who is late, what it costs, and what a change will bring."""

import random

import numpy as np
from clusters import QUEUED
from planted_delays import KINDS, MODEL

import workbench as wb
from tests.bench import causes as planting
from tests.bench import whatif
from tests.truth import START_S
from workbench.cluster import TextSink
from workbench.errors import VmsUnavailable
from workbench.testbed import vms, why_not

ITERATIONS, DELAY_S = 30, 0.03
SPANS = (range(ITERATIONS), range(10, 22))
CALIBRATION_S = 10
CASES = [
    {"gbps": 0.5},
    {"gbps": 0.15, "compression": "fp16"},
    {"gbps": 0.5, "batch_scale": 2.0},
    {"gbps": 0.5, "fusion_threshold_bytes": 0},
    {"gbps": 0.5, "ranks": 3},
]
"""A case of each kind of `tests.bench.whatif`."""
CELL_S = 120


def stragglers(table):
    """A delay in one rank and phase, in all iterations of a cell or in some."""
    with wb.Cluster(n=2, start_timeout_s=START_S) as cluster:
        cluster.run(QUEUED + MODEL, sink=TextSink(), timeout=CELL_S)
        for place, where in enumerate(KINDS):
            for when in SPANS:
                straggler(table, cluster, place % 2, where, when)


def straggler(table, cluster, late, where, when):
    """Compare the straggler of most iterations with the delay; other work delays single ones."""
    first = int(cluster.timings.to_frame()["iteration"].max()) + 1
    call = f"train({ITERATIONS}, late={late}, where={where!r}, when={when!r}, seconds={DELAY_S})"
    slept = cluster.run(call, sink=TextSink(), timeout=CELL_S).values[late]
    found = cluster.timings.stragglers()
    found = found[found["last_iteration"] >= first]
    found = found.iloc[(found["first_iteration"] - found["last_iteration"]).argsort()[:1]]
    shown = [(one.rank, one.phase, one.kind) for one in found.itertuples()] or [None]
    table.add("straggler: rank, phase and kind", shown, [(late, where, KINDS[where])])
    for one in found.itertuples():
        table.add("straggler: its size", [one.excess_us], [np.median(slept)])
        span = one.first_iteration - first, one.last_iteration - first
        table.add("straggler: first and last iteration", span, (when[0], when[-1]))


def causes(table, seed=0):
    """One cause of each kind of `tests.bench.causes`, and the same training without it."""
    if (reason := why_not()) is not None:
        raise VmsUnavailable(reason)
    chance = random.Random(seed)
    with vms(2, gbps=planting.GBPS) as machines:
        hosts = machines.hosts(1)
        with wb.Cluster(
            hosts=hosts, ssh_config=machines.ssh_config, start_timeout_s=START_S
        ) as cluster:
            cluster.run(planting.TRAIN, sink=TextSink(), timeout=CELL_S)
            cluster.calibrate(seconds=CALIBRATION_S, show_progress=False)
            for kind in planting.KINDS:
                one = planting.plant(chance, kind)
                first, saved_us = planting.compare(machines, cluster, one)
                named = planting.is_named(first, one)
                name = first.name if first is not None else "nothing"
                print(f"  {kind}, {one.where}: {name}", flush=True)
                table.add("explain: the first cause", [named], [True])
                if named:
                    table.add("explain: what it costs", [first.saving_us], [saved_us])


def predictions(table):
    """Changes that are predicted, and then made."""
    if (reason := why_not()) is not None:
        raise VmsUnavailable(reason)
    for case, told, true_us in whatif.outcomes(CASES):
        print(f"  {case}: {told.predicted_us / 1e3:.1f} ms, {true_us / 1e3:.1f} ms", flush=True)
        table.add("a predicted iteration", [told.predicted_us], [true_us])
