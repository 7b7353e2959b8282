"""Topology files of real VMs, rebuilt: the places are facts of two cloud vendors' files."""

from __future__ import annotations

GPU, INFINIBAND, ETHERNET = "0x030200", "0x020700", "0x020000"


def pci(busid: str, pci_class: str, inside: str = "", **more: str) -> str:
    attributes = {"busid": busid, "class": pci_class, **more}
    text = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<pci{text}>{inside}</pci>" if inside else f"<pci{text}/>"


def switch(number: int, *inside: str) -> str:
    return pci(f"ffff:ff:0{number}.0", "0x060400", "".join(inside), link_speed="16 GT/s",
               link_width="16")  # fmt: skip


def cpu(numaid: int, *inside: str) -> str:
    return f'<cpu numaid="{numaid}" arch="x86_64" affinity="0000ffff">{"".join(inside)}</cpu>'


def system(*inside: str, version: str = "1") -> str:
    return f'<!-- a comment -->\n<system version="{version}">\n{"".join(inside)}\n</system>\n'


def azure_ndv4() -> str:
    """8 A100 and 8 HDR ports: 4 CPUs, below each a switch with 2 and 2; no vendors."""
    places = (("0003", "0004", "0103", "0104"), ("0001", "0002", "0101", "0102"),
              ("000d", "000e", "0107", "0108"), ("000b", "000c", "0105", "0106"))  # fmt: skip
    return system(
        *(
            cpu(
                node,
                switch(
                    node + 1,
                    *(pci(f"{domain}:00:00.0", GPU) for domain in domains[:2]),
                    *(pci(f"{domain}:00:00.0", INFINIBAND) for domain in domains[2:]),
                ),
            )
            for node, domains in enumerate(places)
        )
    )


def aws_p4d() -> str:
    """8 A100 and 4 EFA ports: 2 CPUs, below each 2 virtual switches with 2 and 1."""

    def group(number: int, bus: str) -> str:
        nvidia, amazon = {"vendor": "0x10de", "device": "0x20b0"}, {"vendor": "0x1d0f"}
        return switch(
            number,
            pci(f"0000:{bus}:1c.0", GPU, **nvidia),
            pci(f"0000:{bus}:1d.0", GPU, **nvidia),
            pci(f"0000:{bus}:1b.0", ETHERNET, **amazon),
        )

    return system(
        cpu(0, group(1, "10"), group(2, "20")),
        cpu(1, group(3, "90"), group(4, "a0")),
    )
