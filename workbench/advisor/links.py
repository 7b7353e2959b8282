"""Find links that are slower than their calibration, or than their nominal rate."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.advisor.communication import NETWORK_RULES, exposed_of
from workbench.advisor.evidence import Evidence
from workbench.advisor.what_if import link_gbps
from workbench.fabric import Hop
from workbench.fabric.hops import weakest_hop
from workbench.fabric.nominal import find_nic
from workbench.resources import Unknown
from workbench.timings.verdict import Cause

MIN_NOMINAL_SHARE = 0.75
"""A calibrated rate below this share of the nominal rate is a cause."""
_NOW_FIX = "check other users of the network and the NICs' counters; use fewer, larger collectives"
_MATRIX = "the rate of each pair of VMs, with %fabric matrix, which names the slow VM"


def slower_than_calibrated(evidence: Evidence) -> Iterator[Cause]:
    """Yield communication that takes longer now than when the fabric was calibrated."""
    exposed = exposed_of(evidence)
    fabric = evidence.fabric
    summary = evidence.summary
    if not exposed or fabric is None:
        return
    name = "communication slower than the fabric"
    doctor_text, doctor_fixes = evidence.findings(NETWORK_RULES)
    fix = f"{_NOW_FIX}; {doctor_fixes}" if doctor_fixes else _NOW_FIX
    replay = evidence.predict()
    model = evidence.model
    if replay is None or model is None:
        # A difference within the calibration's error is not reported.
        expected_us = fabric.predict_us(summary.bytes) * (1 + fabric.error)
        excess_us = min(exposed, summary.communication_us - evidence.waiting.all_us - expected_us)
        text = (
            f"{summary.communication_us / 1e3:.2f} ms of communication per iteration, of which the "
            f"calibration explains {expected_us / 1e3:.2f} ms{doctor_text}"
        )
        yield evidence.cause(name, text, fix, excess_us, bound=True, measure=_MATRIX)
        return
    calibrated_us = sum(fabric.predict_us(size) for size in replay.simulated.buffer_bytes)
    as_calibrated = evidence.predict(gbps=fabric.busbw_gbps / model.payload)
    if model.transfer_us <= calibrated_us * (1 + fabric.error) or as_calibrated is None:
        return
    text = (
        f"transfers take {model.transfer_us / 1e3:.2f} ms per iteration, and took "
        f"{calibrated_us / 1e3:.2f} ms (\u00b1 {fabric.error:.0%}) when the fabric was calibrated"
        f"{doctor_text}"
    )
    yield evidence.predicted(name, text, fix, as_calibrated, measure=_MATRIX)


def below_nominal(evidence: Evidence) -> Iterator[Cause]:
    """Yield a link with a calibrated rate far below its nominal rate."""
    fabric = evidence.fabric
    model = evidence.model
    hop = _weakest(evidence)
    if not exposed_of(evidence) or fabric is None or model is None or hop is None:
        return
    assert not isinstance(hop.gb_per_s, Unknown)  # The weakest hop has a known rate.
    nominal = hop.gb_per_s * 8
    payload = model.payload if hop.kind == "network" else 1.0
    if fabric.busbw_gbps >= MIN_NOMINAL_SHARE * nominal * payload:
        return
    faster = evidence.predict(gbps=nominal * payload / model.payload)
    if faster is None:
        return
    doctor_text, doctor_fixes = evidence.findings(NETWORK_RULES)
    text = (
        f"the calibrated bus bandwidth is {fabric.busbw_gbps:.2f} Gbit/s, "
        f"{fabric.busbw_gbps / (nominal * payload):.0%} of what the weakest hop of the ring can "
        f"carry: {hop.name}{doctor_text}"
    )
    fix = doctor_fixes or (
        "check the link's width and speed, its other users, the transport (%cluster), and whether "
        "one core per rank is free for communication"
    )
    yield evidence.predicted("link below nominal", text, fix, faster, measure=_MATRIX)


def _weakest(evidence: Evidence) -> Hop | None:
    """Return the weakest hop of the ring; None if its nominal rate is unknown."""
    if len(evidence.ranks) < 2:
        return None
    hop = weakest_hop(evidence.ranks, evidence.snapshots)
    if isinstance(hop, Unknown):
        return None
    infos = [info for info in evidence.ranks if info.rank in hop.ranks and info.vm == hop.vm]
    nic = find_nic(evidence.snapshots[hop.vm], infos[0].nic)
    # The rate of a virtual interface is an arbitrary number that its driver reports.
    return None if hop.kind == "network" and nic is not None and nic.kind == "virtual" else hop


def placement(evidence: Evidence) -> Iterator[Cause]:
    """Yield a ring that crosses the links between VMs more often than necessary.

    NCCL orders its rings by VM, whatever the ranks' numbers, so its rings are not examined.
    """
    if any(
        transport.library == "NCCL"
        for transports in evidence.transports.values()
        for transport in transports
    ):
        return
    vms = [info.vm for info in sorted(evidence.ranks, key=lambda info: info.rank)]
    crossings = sum(vm != next_vm for vm, next_vm in zip(vms, vms[1:] + vms[:1], strict=True))
    needed = len(set(vms))
    model = evidence.model
    if needed < 2 or crossings <= needed or model is None or not exposed_of(evidence):
        return
    better = evidence.predict(gbps=link_gbps(model) * crossings / needed)
    if better is None:
        return
    text = (
        f"the ring of the ranks leaves VMs {crossings} times, and {needed} would do: "
        f"{', '.join(f'rank {rank} on {vm}' for rank, vm in enumerate(vms[:8]))}"
    )
    fix = (
        "give the ranks of a VM consecutive numbers: start ipyparallel's engines in the order of "
        "the VMs (ranks of named hosts are in their order), then the cluster again"
    )
    yield evidence.predicted("poor placement", text, fix, better)
