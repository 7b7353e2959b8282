"""The key figures of a cluster's newest iterations, as the live view shows them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from workbench.ranks import phrase
from workbench.resources import Unknown
from workbench.resources.unknown import number_or_unknown
from workbench.timings.summary import COMPILED, UNHEARD, notes
from workbench.widgets.source import NOT_REPORTED, KeyFigures

if TYPE_CHECKING:
    from workbench.cluster import Cluster
    from workbench.timings import Summary, Timings
    from workbench.widgets.nominal import NominalRate

_NOT_YET = "no iteration has ended yet"
_NOT_ALL = "not all ranks have reported these iterations"
_NO_PARTS = "the transfers of these iterations were not recorded"
_MESSAGES = "ranks wait for messages of others, not for the last rank"
NO_ITERATION = Unknown(_NOT_YET)
_NOT_CALIBRATED = Unknown("not measured yet: run cluster.calibrate()")


def key_figures(
    cluster: Cluster, timings: Timings, nominal: NominalRate, found: Summary
) -> KeyFigures:
    """Return the key figures of a summary of `timings`, with the reason for each unknown one."""
    behind = Unknown("no rank is late throughout")
    if found.ranks < 2:
        behind = Unknown("a single rank waits for no other")
    slow, excess = found.slowest_rank, found.slowest_excess_us
    unknown = UNHEARD if found.unheard else COMPILED if found.compiled else _NOT_YET
    why = _NOT_ALL if math.isnan(found.waiting_us) else _NO_PARTS
    if found.messages_us > 0:
        why = _MESSAGES
    if math.isnan(found.exposed_us):
        why = unknown
    silent = UNHEARD if found.unheard else "no gradients were reduced between ranks"
    fabric = cluster.fabric
    return KeyFigures(
        iteration=found.iteration if found.iteration >= 0 else NO_ITERATION,
        iterations_per_s=number_or_unknown(found.iterations_per_s, _NOT_YET),
        iteration_us=number_or_unknown(found.iteration_us, _NOT_YET),
        exposed_us=number_or_unknown(found.exposed_us, unknown),
        exposed_share=number_or_unknown(found.exposed_share, unknown),
        waiting_us=number_or_unknown(found.waiting_us, why),
        queued_us=number_or_unknown(found.queued_us, why),
        transfer_us=number_or_unknown(found.transfer_us, why),
        busbw_gbps=number_or_unknown(found.busbw_gbps, silent),
        nominal_gbps=nominal.get(),
        calibrated_gbps=_calibrated(cluster, found),
        calibrated_error=_NOT_CALIBRATED if fabric is None else fabric.error,
        slowest_rank=behind if slow is None else slow,
        slowest_excess_us=behind if excess is None else excess,
        dropped=timings.dropped,
        notes=notes(found),
        transport=_transport(cluster),
        first_iteration=found.first_iteration if found.first_iteration >= 0 else NO_ITERATION,
        last_iteration=found.last_iteration if found.last_iteration >= 0 else NO_ITERATION,
    )


def _transport(cluster: Cluster) -> str | Unknown:
    """Return how collectives are carried, with the ranks where that differs."""
    ranks: dict[str, list[int]] = {}
    for info in cluster.ranks:
        if transport := getattr(info, "transport", ""):
            ranks.setdefault(transport, []).append(info.rank)
    if len(ranks) < 2:
        return next(iter(ranks), NOT_REPORTED)
    return "; ".join(f"{text} ({phrase(ones)})" for text, ones in ranks.items())


def _calibrated(cluster: Cluster, found: Summary) -> float | Unknown:
    fabric = cluster.fabric
    if fabric is None:
        return _NOT_CALIBRATED
    if not fabric.reliable:
        return Unknown(fabric.caveat)
    if fabric.n != cluster.n:
        return Unknown(f"calibrated with {fabric.n} ranks: run cluster.calibrate() again")
    # Compared as one allreduce: exposed and overlapped communication both count.
    size, n = found.bytes, fabric.n
    us = fabric.predict_us(size)
    if not size or us <= 0:
        return Unknown("no gradients were reduced between ranks")
    return size * 8 / (us * 1e3) * 2 * (n - 1) / n
