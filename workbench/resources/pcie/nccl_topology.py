"""Read NCCL's topology files. Cloud vendors provide such files for their VMs.

NCCL defines the format in its ``src/graph/xml``: ``system``, ``cpu`` and nested ``pci``,
which contain ``gpu`` (with ``nvlink`` and ``c2c``) and ``nic`` (with ``net``); a ``cpu`` may
also contain a ``nic``. Elements that NCCL ignores are ignored here. A ``pci`` only needs a
``busid``: NCCL reads the rest from sysfs, and so does this module on the VM itself.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from xml.parsers import expat  # safe here: `_doctype` rejects document types, so no entities

from workbench.errors import SnapshotError, printable
from workbench.resources.pcie.nccl_devices import (
    DeviceReader,
    Element,
    complete,
    int_or,
    missing_class,
)
from workbench.resources.pcie.nccl_xml import rejection_reason
from workbench.resources.pcie.records import (
    TOPOLOGY_FILE,
    PciRoot,
    PciTree,
    TopologyNvlink,
)
from workbench.resources.unknown import Unknown
from workbench.safefiles import read_file

_log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20
"""Maximum size of a file; the vendors' largest files have some tens of kB."""
_MAX_ELEMENTS = 16384
_MAX_ENDPOINTS = 256  # all pairs are measured; a rack of 72 GPUs has about 150
_MAX_DEPTH = 64
_MAX_CHARACTERS = 1024  # the CPU mask of a node: 4 CPUs per character
_MAX_LINKS = 64
"""Maximum number of links between a GPU and one peer; a B200 has 18 links in total."""
_VERSION = "1"  # NCCL_TOPO_XML_VERSION
_BUSID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_CPU_ATTRIBUTES = ("host_hash", "affinity", "arch", "vendor", "familyid", "modelid")
# Possible parents of each element. All other elements are ignored, as by NCCL.
_PARENTS = {"cpu": "system", "pci": "cpu pci", "gpu": "pci", "nvlink": "gpu", "c2c": "gpu",
           "nic": "cpu pci", "net": "nic"}  # fmt: skip
_DEVICE_ATTRIBUTES = ("name", "sm", "gdr", "speed")
_HIDDEN = "fffffff:ffff:ff"  # NCCL's target for a switch that the VM does not show
_SWITCH = "0x068000"


def read_topology(path: str | Path, read_device: DeviceReader | None = None) -> PciTree:
    """Read one topology file.

    Parameters
    ----------
    path
        Path of the file.
    read_device
        Reads devices of the VM where NCCL reads the file; None if only the file is
        available.

    Raises
    ------
    SnapshotError
        If the file cannot be read, or is not a topology file.
    """
    try:
        data = read_file(path, MAX_BYTES)
    except OSError as error:
        raise SnapshotError(
            f"cannot read the topology file {path}: {error.strerror}. Use the XML file "
            "in NCCL_TOPO_FILE."
        ) from error
    return parse_topology(data, str(path), read_device)


def parse_topology(data: bytes, origin: str, read_device: DeviceReader | None = None) -> PciTree:
    """Read the content of a topology file; `origin` names it in messages.

    Raises
    ------
    SnapshotError
        If it is not a topology file.

    Examples
    --------
    >>> tree = parse_topology(
    ...     b'<system version="1"><cpu numaid="0">'
    ...     b'<pci busid="0000:53:00.0" class="0x030200"/></cpu></system>', "example.xml")
    >>> tree.devices[0].kind, tree.devices[0].numa_node
    ('gpu', 0)
    """
    return _Reader(origin, read_device).read(data)


class _Reader:
    """Reads one file in one pass, and collects its content in attributes."""

    def __init__(self, origin: str, read_device: DeviceReader | None) -> None:
        self._origin = printable(origin)
        self._read_device = read_device
        self._rejection = ""
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.StartDoctypeDeclHandler = self._doctype
        # Open elements: the name (empty if ignored), and the key of their CPU or PCI device.
        self._open: list[tuple[str, str]] = []
        self._element_count = 0
        self._roots: dict[str, PciRoot] = {}
        self._pci: dict[str, tuple[str, dict[str, str]]] = {}
        self._children: dict[str, set[str]] = {}
        self._network_devices: dict[str, tuple[str, ...]] = {}
        self._nvlinks: list[TopologyNvlink] = []
        self._attributes: dict[str, dict[str, str]] = {}

    def read(self, data: bytes) -> PciTree:
        try:
            self._parser.Parse(data, True)
        # expat raises LookupError and ValueError for an unknown or invalid encoding.
        except (expat.ExpatError, LookupError, ValueError) as error:
            raise SnapshotError(
                f"{self._origin} is not complete XML ({error}): it was truncated or is another "
                "kind of file. Get it again from its source."
            ) from error
        elements = [self._element(address) for address in self._pci]
        devices = tuple(complete(element, self._read_device) for element in elements)
        endpoints = sum(device.kind not in ("bridge", "other") for device in devices)
        if endpoints > _MAX_ENDPOINTS:
            raise self._bad(f"{endpoints} GPUs and NICs, more than {_MAX_ENDPOINTS}",
                            "Use the topology file of one VM.")  # fmt: skip
        if not endpoints:
            raise self._bad("no pci element that is a GPU or a NIC (class 0x03 or 0x02)", "Use a "
                            "topology file of a VM with GPUs.")  # fmt: skip
        roots = tuple(self._roots.values())
        nvlinks = tuple(self._nvlinks)
        rejection = rejection_reason(data) or self._rejection
        if self._read_device is not None and not rejection:
            rejection = missing_class(elements, self._read_device)
        _log.debug(
            "Read %s: %d devices; rejected by NCCL: %s",
            self._origin,
            len(devices),
            rejection or "no",
        )
        return PciTree(
            TOPOLOGY_FILE, self._origin, roots, devices, nvlinks, self._attributes, rejection
        )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._element_count += 1
        attributes = {key: self._text(value) for key, value in attributes.items()}
        if self._element_count > _MAX_ELEMENTS or len(self._open) >= _MAX_DEPTH:
            raise self._bad(
                f"more than {_MAX_ELEMENTS} elements, or {_MAX_DEPTH} nested elements",
                "NCCL does not accept such a file. Get it again from its source.",
            )
        if not self._open:
            self._check_system(name, attributes)
            self._open.append((name, ""))
            return
        parent, key = self._open[-1]
        if parent not in _PARENTS.get(name, "").split():
            self._open.append(("", ""))
            return
        self._children.setdefault(key, set()).add(name)
        self._open.append((name, self._add(name, parent, key, attributes)))

    def _text(self, value: str) -> str:
        if len(value) > _MAX_CHARACTERS:
            raise self._bad(
                f"an attribute of {len(value):,} characters, more than {_MAX_CHARACTERS:,}",
                "Get the file again from its source.",
            )
        return printable(value)

    def _add(self, name: str, parent: str, key: str, attributes: dict[str, str]) -> str:
        """Store an element, and return the key of the CPU or PCI device that it belongs to."""
        if name == "cpu":
            return self._add_cpu(attributes)
        if name == "pci":
            return self._add_pci(key, attributes)
        if name == "nic" and parent == "cpu":
            return self._add_nic_of_cpu(key)
        if name == "nvlink":
            self._add_nvlink(key, attributes)
        elif name == "c2c":
            self._attributes.setdefault(key, {})["c2c"] = attributes.get("count") or "1"
        elif name in {"gpu", "net"}:
            self._add_attributes(name, key, attributes)
        return key

    def _end(self, _name: str) -> None:
        self._open.pop()

    def _doctype(self, name: str, *_rest: object) -> None:
        raise self._bad(
            f"a document type ({name}), which no topology file has (`nvidia-smi -q -x` writes one)",
            "Use the file in NCCL_TOPO_FILE, or write one with NCCL_TOPO_DUMP_FILE.",
        )

    def _check_system(self, name: str, attributes: dict[str, str]) -> None:
        if name != "system":
            raise self._bad(
                f"<{name}> where a topology file has <system>",
                "Use the file in NCCL_TOPO_FILE, or write one with NCCL_TOPO_DUMP_FILE.",
            )
        version = attributes.get("version")
        if version != _VERSION:
            raise self._bad(
                f"version {version!r} where NCCL reads {_VERSION!r}", "Write version=\"1\" "
                "if the rest is in NCCL's format, or get the file again.",
            )  # fmt: skip

    def _add_cpu(self, attributes: dict[str, str]) -> str:
        text = attributes.get("numaid", "")
        if "numaid" not in attributes:
            self._rejection = "a cpu element has no numaid, which NCCL does not read from sysfs"
        node = int_or(text, "the topology file gives the CPU no numaid")
        name = f"cpu{text or '?'}"
        if attributes.get("host_hash"):  # a dump with NVLinks across VMs has the CPUs of each VM
            name += f"@{attributes['host_hash']}"
        if isinstance(node, int) and node < 0:
            node = Unknown(f"the topology file gives node {node}: the guest knows no NUMA node")
        # NCCL identifies a CPU by its node: two elements with one node are the same CPU.
        cpu = {key: attributes[key] for key in _CPU_ATTRIBUTES if key in attributes}
        self._roots.setdefault(name, PciRoot(name, node, cpu))
        return name

    def _add_pci(self, parent: str, attributes: dict[str, str]) -> str:
        text = attributes.get("busid", "")
        match = _BUSID.fullmatch(text.lower())
        if match is None:
            raise self._bad(f"a pci element with busid {text!r}", 'Write it as "0000:53:00.0".')
        address = f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}"
        if address in self._pci:
            raise self._bad(f"busid {address} a second time", "Give every device its own.")
        self._pci[address] = (parent, attributes)
        return address

    def _add_nic_of_cpu(self, cpu: str) -> str:
        """Return the key of the device for all of a CPU's NICs that have no PCI address."""
        address = f"{cpu}/nic"
        self._pci.setdefault(address, (cpu, {}))
        self._children.setdefault(address, set()).add("nic")
        self._network_devices[address] = ()
        return address

    def _add_attributes(self, element: str, address: str, attributes: dict[str, str]) -> None:
        """Store attributes of a device; if several ports set an attribute, keep the first value."""
        if element == "net" and attributes.get("name") and "/" not in address:
            self._network_devices[address] = (
                *self._network_devices.get(address, ()),
                attributes["name"],
            )
        stored = self._attributes.setdefault(address, {})
        for name in _DEVICE_ATTRIBUTES:
            if attributes.get(name):
                stored.setdefault(name, attributes[name])

    def _add_nvlink(self, gpu: str, attributes: dict[str, str]) -> None:
        target = attributes.get("target", "").lower()
        match = _BUSID.fullmatch(target)
        if match is None and target != _HIDDEN:
            raise self._bad(f"an nvlink with target {target!r}", 'Write it as "0000:53:00.0".')
        count = int_or(attributes.get("count", ""), "the topology file gives no count")
        if isinstance(count, int) and not 0 <= count <= _MAX_LINKS:
            raise self._bad(f"{count} NVLinks to one peer", f"Write 0 to {_MAX_LINKS}.")
        no_class = Unknown("the topology file gives no tclass") if match else _SWITCH
        peer_class = attributes.get("tclass") or no_class
        peer = f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}" if match else target
        self._nvlinks.append(TopologyNvlink(gpu, peer, count, peer_class))

    def _element(self, address: str) -> Element:
        ancestors = self._ancestors(address)
        return Element(
            address=address,
            ancestors=ancestors,
            attributes=self._pci[address][1],
            children=frozenset(self._children.get(address, set())),
            numa_node=self._roots[ancestors[-1]].numa_node,
            network_devices=self._network_devices.get(address, Unknown("not in a topology file")),
        )

    def _ancestors(self, address: str) -> tuple[str, ...]:
        ancestors = []
        while address in self._pci:
            address = self._pci[address][0]
            ancestors.append(address)
        return tuple(ancestors)

    def _bad(self, content: str, what_to_do: str) -> SnapshotError:
        line = self._parser.CurrentLineNumber
        return SnapshotError(f"{self._origin}, line {line}: found {content}. {what_to_do}")
