"""A VM in a notebook: its hardware, and the doctor's findings."""

from __future__ import annotations

from html import escape
from typing import Any

from workbench.doctor import diagnose
from workbench.resources import Snapshot, Unknown, take_snapshot
from workbench.resources.distance_matrix import matrix
from workbench.resources.summary import MAX_DEVICES, lines, nvlink_words, profile_words, show_bytes
from workbench.widgets.findings import FindingsView
from workbench.widgets.tree_picture import tree_picture

_MAX_ROWS = 256
"""Limit of a table's rows, including the collapsed ones; pages display this many smoothly."""
_TABLE = (
    "color:inherit;border-collapse:collapse;font-size:12px;"
    "font-variant-numeric:tabular-nums;margin:4px 0 12px 0"
)
_PRE = (
    "color:inherit;font-family:var(--jp-code-font-family, monospace);font-size:12px;"
    "line-height:1.4;margin:4px 0;white-space:pre-wrap"
)
_UNKNOWN = ("failed", "unknown")
"""States of probes that have not found out which devices exist."""
_CELL = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"


def resources_view(snapshot: Snapshot | None = None, topology: str | None = None) -> ResourcesView:
    """Return the resources of a VM as tables; this VM by default.

    If `topology` names a file, also write the VM's topology to it, for NCCL_TOPO_FILE.
    """
    view = ResourcesView(take_snapshot() if snapshot is None else snapshot)
    if topology:
        from workbench.resources.topology_snapshot import write_topology

        write_topology(view.snapshot, topology)
    return view


def doctor_view(snapshot: Snapshot | None = None) -> FindingsView:
    """Return the findings on a VM as cards; this VM by default."""
    snapshot = take_snapshot() if snapshot is None else snapshot
    return FindingsView(snapshot, diagnose(snapshot))


class ResourcesView:
    """A snapshot as tables; the text form is the output of `workbench resources`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def __repr__(self) -> str:
        return str(self.snapshot)

    def _repr_html_(self) -> str:
        probe = self.snapshot.probes.get("host")
        if probe is not None and probe.status == "absent":  # a topology file has only devices
            return tree_picture(self.snapshot) + _text("\n".join(lines(self.snapshot)))
        host = self.snapshot.host
        cpus = f"{_plain(host.cpus)} usable of {_plain(host.cpus_total)}"
        facts = {
            "host": host.hostname,
            "hypervisor": host.hypervisor,
            "CPUs": cpus,
            "memory": _size(host.memory_bytes),
            "NUMA nodes": host.numa_nodes,
            "system": host.os,
        }
        gpus = [
            [
                gpu.index,
                gpu.name,
                _size(gpu.memory_bytes),
                gpu.form,
                profile_words(gpu),
                nvlink_words(gpu),
                gpu.pci_address,
            ]
            for gpu in self.snapshot.gpus
        ]
        nics = [
            [nic.name, nic.rdma_device, nic.link_layer, nic.rate_gbps, nic.state, nic.driver]
            for nic in self.snapshot.nics
        ]
        return (
            table(list(facts), [list(facts.values())])
            + self._devices(
                "gpus",
                "GPU",
                ["GPU", "name", "memory", "form", "vGPU profile", "NVLink", "PCI address"],
                gpus,
            )
            + self._devices(
                "nics",
                "NIC",
                ["NIC", "RDMA device", "link layer", "rate Gbit/s", "state", "driver"],
                nics,
            )
            + tree_picture(self.snapshot)
            + self._matrix()
        )

    def _matrix(self) -> str:
        text = "\n".join(matrix(self.snapshot))
        return _text(text) if text else ""

    def _devices(self, probe: str, noun: str, head: list[str], rows: list[list[Any]]) -> str:
        if rows:
            return _bounded(head, rows, noun)
        probe_result = self.snapshot.probes.get(probe)
        reason = (
            probe_result.reason
            if probe_result is not None and probe_result.reason
            else "none was found"
        )
        title = (
            f"{noun}s unknown" if probe_result and probe_result.status in _UNKNOWN else f"No {noun}"
        )
        return f'<p style="font-size:12px;margin:4px 0">{title}: {escape(reason)}</p>'


def _bounded(head: list[str], rows: list[list[Any]], noun: str) -> str:
    """Return a table of the first rows, with more rows collapsed below it."""
    text = table(head, rows[:MAX_DEVICES])
    collapsed_rows = rows[MAX_DEVICES:_MAX_ROWS]
    if collapsed_rows:
        summary = f"{len(collapsed_rows)} more {noun}s"
        text += f"<details><summary>{summary}</summary>{table(head, collapsed_rows)}</details>"
    if len(rows) > _MAX_ROWS:
        note = f"{len(rows) - _MAX_ROWS:,} {noun}s are not shown. See this view's `.snapshot`."
        text += f'<p style="font-size:12px;margin:4px 0">{note}</p>'
    return text


def _text(text: str) -> str:
    return f'<pre style="{_PRE}">{escape(text)}</pre>'


def table(head: list[str], rows: list[list[Any]]) -> str:
    """Return an HTML table of values; an `Unknown` is a dash with its reason as tooltip."""
    heads = "".join(f'<th scope="col" style="{_CELL}">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<table style="{_TABLE}"><tr>{heads}</tr>{body}</table>'


def _cell(value: Any) -> str:
    if isinstance(value, Unknown):
        # Focusable, so that the reason can be read without a mouse.
        reason = escape(value.reason, quote=True)
        return (
            f'<td style="{_CELL};opacity:.6" tabindex="0" title="{reason}" '
            f'aria-label="{reason}">\u2013</td>'
        )
    return f'<td style="{_CELL}">{escape(_plain(value))}</td>'


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _size(value: int | Unknown) -> str | Unknown:
    return value if isinstance(value, Unknown) else show_bytes(value)
