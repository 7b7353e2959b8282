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
    cluster: Cluster, timings: Timings, nominal: NominalRate, summary: Summary
) -> KeyFigures:
    """Return the key figures of a summary of `timings`; unknown figures have a reason."""
    no_straggler = Unknown("no rank is late throughout")
    if summary.ranks < 2:
        no_straggler = Unknown("a single rank waits for no other")
    slowest_rank = summary.slowest_rank
    slowest_excess_us = summary.slowest_excess_us
    communication_reason = (
        UNHEARD if summary.unheard else COMPILED if summary.compiled else _NOT_YET
    )
    parts_reason = _NOT_ALL if math.isnan(summary.waiting_us) else _NO_PARTS
    if summary.messages_us > 0:
        parts_reason = _MESSAGES
    if math.isnan(summary.exposed_us):
        parts_reason = communication_reason
    bandwidth_reason = UNHEARD if summary.unheard else "no gradients were reduced between ranks"
    fabric = cluster.fabric
    return KeyFigures(
        iteration=summary.iteration if summary.iteration >= 0 else NO_ITERATION,
        iterations_per_s=number_or_unknown(summary.iterations_per_s, _NOT_YET),
        iteration_us=number_or_unknown(summary.iteration_us, _NOT_YET),
        exposed_us=number_or_unknown(summary.exposed_us, communication_reason),
        exposed_share=number_or_unknown(summary.exposed_share, communication_reason),
        waiting_us=number_or_unknown(summary.waiting_us, parts_reason),
        queued_us=number_or_unknown(summary.queued_us, parts_reason),
        transfer_us=number_or_unknown(summary.transfer_us, parts_reason),
        busbw_gbps=number_or_unknown(summary.busbw_gbps, bandwidth_reason),
        nominal_gbps=nominal.get(),
        calibrated_gbps=_calibrated(cluster, summary),
        calibrated_error=_NOT_CALIBRATED if fabric is None else fabric.error,
        slowest_rank=no_straggler if slowest_rank is None else slowest_rank,
        slowest_excess_us=no_straggler if slowest_excess_us is None else slowest_excess_us,
        dropped=timings.dropped,
        notes=notes(summary),
        transport=_transport(cluster),
        first_iteration=summary.first_iteration if summary.first_iteration >= 0 else NO_ITERATION,
        last_iteration=summary.last_iteration if summary.last_iteration >= 0 else NO_ITERATION,
    )


def _transport(cluster: Cluster) -> str | Unknown:
    """Return how collectives are carried; name the ranks if they differ."""
    ranks_by_transport: dict[str, list[int]] = {}
    for info in cluster.ranks:
        if transport := getattr(info, "transport", ""):
            ranks_by_transport.setdefault(transport, []).append(info.rank)
    if len(ranks_by_transport) < 2:
        return next(iter(ranks_by_transport), NOT_REPORTED)
    return "; ".join(
        f"{text} ({phrase(rank_ids)})" for text, rank_ids in ranks_by_transport.items()
    )


def _calibrated(cluster: Cluster, summary: Summary) -> float | Unknown:
    """Return the bus bandwidth in Gbit/s that the calibration predicts for this run's bytes."""
    fabric = cluster.fabric
    if fabric is None:
        return _NOT_CALIBRATED
    if not fabric.reliable:
        return Unknown(fabric.caveat)
    if fabric.n != cluster.n:
        return Unknown(f"calibrated with {fabric.n} ranks: run cluster.calibrate() again")
    # The comparison treats all bytes as one allreduce: both exposed and overlapped communication
    # count.
    size_bytes = summary.bytes
    rank_count = fabric.n
    predicted_us = fabric.predict_us(size_bytes)
    if not size_bytes or predicted_us <= 0:
        return Unknown("no gradients were reduced between ranks")
    # In a ring, each link carries 2 (n - 1) / n times the bytes; bits per ns are Gbit/s.
    return size_bytes * 8 / (predicted_us * 1e3) * 2 * (rank_count - 1) / rank_count
