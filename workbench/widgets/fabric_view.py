"""Views of ``%fabric``: the links of a VM or a cluster, a calibration, and a matrix of pairs."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING, Any

from workbench.resources import Snapshot, Unknown, take_snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from IPython.core.formatters import DisplayFormatter

    from workbench.advisor.scaling_record import ScalingStudy, StudyComparison
    from workbench.cluster import Cluster
    from workbench.fabric import Bandwidth, BandwidthMatrix, FittedFabric

_log = logging.getLogger(__name__)

_ADVICE = "Measure it with %fabric calibrate."


def register(formatter: DisplayFormatter) -> None:
    """Register how notebooks show matrices and studies, without importing their modules."""
    html = formatter.formatters["text/html"]
    for module, name, to_html in (
        ("fabric.matrix", "BandwidthMatrix", _matrix_html),
        ("advisor.scaling_record", "ScalingStudy", _study_html),
        ("advisor.scaling_record", "StudyComparison", _comparison_html),
    ):
        html.for_type_by_name(f"workbench.{module}", name, to_html)


def _matrix_html(matrix: BandwidthMatrix) -> str:
    from workbench.widgets.fabric_figures import matrix_html

    return matrix_html(matrix)


def _study_html(study: ScalingStudy) -> str:
    from workbench.widgets.scaling_figures import study_html

    return study_html(study)


def _comparison_html(comparison: StudyComparison) -> str:
    from workbench.widgets.scaling_figures import comparison_html

    return comparison_html(comparison)


def fabric_view(args: Any) -> Any:
    """Return the view that the parsed arguments of ``%fabric`` select."""
    from workbench.cluster import registry
    from workbench.resources.snapshot import load

    if args.verb == "show":
        return (
            links_figure(None, load(args.name)) if args.name else links_figure(registry.current())
        )
    from workbench.widgets.fabric_figures import calibration_figure

    cluster = registry.required()
    if args.verb == "matrix":
        return cluster.bandwidth_matrix()
    seconds = {} if args.seconds is None else {"seconds": args.seconds}
    fabric = cluster.calibrate(stored=bool(args.stored), **seconds)
    if not fabric.sizes_bytes:  # a single rank has nothing to draw
        return fabric
    return calibration_figure(fabric, _known_nominal_gbps(cluster))


def scaling_view(source: str, sizes: Sequence[int], args: Any) -> ScalingStudy:
    """Run a cell at several numbers of ranks, with the nominal rate of the cluster's links.

    The option ``--gbps`` replaces the nominal rate.
    """
    from workbench.advisor.scaling import scaling_study
    from workbench.cluster import registry

    cluster = registry.required()
    gbps = _known_nominal_gbps(cluster) if args.gbps is None else args.gbps
    repeats = 1 if args.repeats is None else args.repeats
    _log.info("scaling study at %s ranks, %d runs each", sizes, repeats)
    return scaling_study(
        cluster, source, sizes,
        label=args.label, nominal_gbps=gbps, save=args.save, repeats=repeats,
    )  # fmt: skip


def comparison_view(path: str, other: str) -> StudyComparison:
    """Compare two saved studies."""
    from workbench.advisor.scaling_record import ScalingStudy

    return ScalingStudy.load(path).compare(ScalingStudy.load(other))


def _known_nominal_gbps(cluster: Cluster) -> float | None:
    """Return the nominal rate of the cluster's links in Gbit/s; None if it is unknown."""
    from workbench.widgets.nominal import nominal_gbps

    rate = nominal_gbps(cluster)
    return None if isinstance(rate, Unknown) else rate


def links_figure(cluster: Cluster | None, snapshot: Snapshot | None = None) -> Any:
    """Draw the bandwidths of a cluster's VMs, with the weakest hop of the ring.

    Without a cluster that has ranks, draw the bandwidths of the VM of `snapshot`, by default this
    VM.
    """
    from workbench.fabric import landscape, weakest_hop
    from workbench.widgets.fabric_figures import landscape_figure

    if cluster is None or not cluster.ranks:
        return landscape_figure({"": landscape(snapshot or take_snapshot())})
    snapshots = cluster.snapshot()
    ranks = cluster.ranks
    fabric = cluster.fabric or cluster.stored_calibration()
    vms_by_bandwidths: dict[tuple[Bandwidth, ...], list[str]] = {}
    for vm, vm_snapshot in snapshots.items():
        measured = dict(fabric.devices.get(vm, {})) if fabric else {}
        if fabric and fabric.reliable and len(snapshots) > 1:
            # The interface or, after a comma, the RDMA port: "ens192, mlx5_0".
            nics = {info.nic.rpartition(", ")[2] for info in ranks if info.vm == vm}
            measured |= dict.fromkeys(nics, fabric.busbw_gbps / 8)
        vms_by_bandwidths.setdefault(landscape(vm_snapshot, measured), []).append(vm)
    weakest = weakest_hop(ranks, snapshots) if len(ranks) > 1 else None
    rows = {", ".join(vms): bandwidths for bandwidths, vms in vms_by_bandwidths.items()}
    return landscape_figure(rows, weakest, _notes(cluster, fabric))


def _notes(cluster: Cluster, fabric: FittedFabric | None) -> list[str]:
    if fabric is None:
        return [f"This fabric was not calibrated. {_ADVICE}"]
    lines = fabric.sentences
    if cluster.fabric is None:
        when = datetime.fromtimestamp(fabric.measured_at).strftime("%Y-%m-%d %H:%M")
        lines.append(f"That was measured at {when}: %fabric calibrate --stored uses it again.")
    return lines
