"""Read ACS and ATS from a PCI device's configuration space (PCI Express specification)."""

from __future__ import annotations

from pathlib import Path

from workbench.resources.unknown import Unknown

_ACS, _ATS = 0x000D, 0x000F
_EXTENDED = 0x100
_CONTROL = 6
# Request redirect and completion redirect: each sends peer-to-peer traffic to the root complex.
_REDIRECT = 0x0004 | 0x0008
_ATS_ENABLED = 0x8000
_MOST = (0x1000 - _EXTENDED) // 8


def read_config(folder: Path) -> bytes | Unknown:
    """Return the configuration space of up to 4096 bytes; without root only 64 are readable."""
    try:
        with (folder / "config").open("rb") as file:
            data = file.read(0x1000)
    except OSError as error:
        return Unknown(f"{folder}/config cannot be read: {error.strerror}")
    if len(data) <= 64:
        return Unknown("needs root: other users can only read the first 64 bytes of config")
    return data


def acs(config: bytes | Unknown) -> str | Unknown:
    """Return ``"redirect"``, ``"off"`` or ``"none"`` (see `PciDevice`)."""
    control = config if isinstance(config, Unknown) else _control(config, _ACS)
    if not isinstance(control, int):
        return control
    return "redirect" if control & _REDIRECT else "off"


def ats(config: bytes | Unknown) -> str | Unknown:
    """Return ``"on"``, ``"off"`` or ``"none"``."""
    control = config if isinstance(config, Unknown) else _control(config, _ATS)
    if not isinstance(control, int):
        return control
    return "on" if control & _ATS_ENABLED else "off"


def _control(config: bytes, capability: int) -> int | str | Unknown:
    """Return the control register of an extended capability; ``"none"`` if it is not listed."""
    if len(config) <= _EXTENDED:
        return Unknown("this VM has no extended configuration space (no PCI Express)")
    at = _EXTENDED
    for _ in range(_MOST):  # the list may contain a loop
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == capability:
            return int.from_bytes(config[at + _CONTROL : at + _CONTROL + 2], "little")
        at = header >> 20
        if at < _EXTENDED or header == 0xFFFFFFFF:
            break
    return "none"
