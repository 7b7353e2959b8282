"""Snapshots with many devices, made of one of an HGX host, to see what their number costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HGX = Path(__file__).parents[2] / "labextension/test/fixtures/hgx-h100-host.json"


def large(gpus: int, nics: int = 8, *, pairs: bool = False) -> dict[str, Any]:
    """A snapshot's plain JSON: GPUs and NICs below one switch each eight, as the HGX host's."""
    plain = json.loads(HGX.read_text())
    gpu, nic = plain["gpus"][0], next(one for one in plain["nics"] if one["kind"] == "rdma")
    devices = {one["address"]: one for one in plain["pcie"]["trees"][-1]["devices"]}
    tree = {**plain["pcie"]["trees"][-1], "devices": [], "nvlinks": [], "told": {}}
    bridge = next(one for one in devices.values() if one["kind"] == "bridge")
    root = tree["roots"][0]["name"]

    def place(number: int, domain: int, like: str) -> str:
        address, above = f"{domain:04x}:{number:02x}:00.0", f"00ff:{number // 8:02x}:00.0"
        if all(one["address"] != above for one in tree["devices"]):
            tree["devices"].append({**bridge, "address": above, "parent": root})
        tree["devices"].append({**devices[like], "address": address, "parent": above})
        return address

    plain["gpus"] = [
        {**gpu, "index": n, "uuid": f"GPU-{n}", "pci_address": place(n, 1, gpu["pci_address"])}
        for n in range(gpus)
    ]
    plain["nics"] = [
        {**nic, "name": f"ib{n}", "rdma_device": f"mlx5_{n}",
         "pci_address": place(n % 256, 2 + n // 256, nic["pci_address"])}
        for n in range(nics)
    ]  # fmt: skip
    addresses = [one["pci_address"] for one in plain["gpus"]]
    ports = [one["pci_address"] for one in plain["nics"]][:8]
    ends = [*addresses, *ports] if pairs else ports
    plain["pcie"] |= {
        "trees": [tree],
        "distances": [
            {"a": a, "b": b, "distance": "PXB", "source": "sysfs"} for a in addresses for b in ends
            if a < b
        ],
        "gpudirect": [
            {"gpu": a, "nic": b, "possible": True, "why": "PXB is within PXB, NCCL's limit",
             "source": "sysfs"}
            for a in addresses for b in ports
        ],
    }  # fmt: skip
    plain["gpu_pairs"] = {"unknown": "not asked"}
    return plain
