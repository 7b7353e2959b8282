"""A GPU's NVLinks, as far as they are known."""

from __future__ import annotations

from workbench.resources import Gpu
from workbench.resources.gpus.records import NvLink, NvLinks


def links_of(gpu: Gpu) -> tuple[NvLink, ...]:
    """Give a GPU's links, up or down; none where the driver does not tell."""
    links = gpu.nvlink.links if isinstance(gpu.nvlink, NvLinks) else None
    return links if isinstance(links, tuple) else ()


def links_up(gpu: Gpu) -> tuple[NvLink, ...]:
    """Give the links that are up."""
    return tuple(link for link in links_of(gpu) if link.state == "up")
