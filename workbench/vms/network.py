"""The network of the VMs: one bridge, and a link of a chosen rate to each."""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from workbench.errors import VmsUnavailable
from workbench.vms.commands import batch, call

KERNEL_HOST = 254
"""The last number of this machine's address; the VMs count from 1."""

# The bucket holds what a timer that is this late must make up for: without it,
# TCP on a busy machine stays below the link's rate.
_SLACK_S = 0.5e-3
# TCP hands down up to 64 KiB at once; a smaller bucket would cut each of them up.
_LEAST_BURST_BYTES = 128 << 10
# As long as a switch's buffer holds a packet before it drops it.
_QUEUE_MS = 5

# A bridge port that is disabled drops what comes and goes; a link that is down
# would tell the VM, and a port that is taken off the bridge would let the
# machine itself answer.
_DISABLED, _FORWARDING = 0, 3

_CONNECT = """
import socket, sys
for where in sys.argv[1:]:
    host, port = where.split(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
    except OSError as error:
        sys.exit(f"{where}: {error}")
"""


@dataclass(frozen=True)
class Vm:
    """A VM's names.

    Attributes
    ----------
    name
        Its host name.
    address
        Its IPv4 address.
    interface
        Its end of its link.
    outer
        The bridge's end of it.
    namespace
        Its network namespace.
    """

    name: str
    address: str
    interface: str
    outer: str
    namespace: str


def free_subnet(taken: Iterable[str]) -> str:
    """Return the first three numbers of a free ``/24``, such as ``"10.64.7"``.

    Parameters
    ----------
    taken
        Those that are spoken for, in the same form.

    Raises
    ------
    VmsUnavailable
        There is none.
    """
    used = [ipaddress.IPv4Network(f"{prefix}.0/24") for prefix in taken]
    for route in json.loads(call("ip", "-json", "-4", "route", "show", "table", "all") or "[]"):
        if route["dst"] != "default":
            network = ipaddress.IPv4Network(route["dst"], strict=False)
            # a route to half the world (a VPN's) leaves room for ours, which is more exact
            if network.prefixlen > 8:
                used.append(network)
    first = os.getpid() << 4
    for number in range(first, first + (64 << 8)):
        prefix = f"10.{64 + (number >> 8) % 64}.{number & 255}"
        if not any(ipaddress.IPv4Network(f"{prefix}.0/24").overlaps(other) for other in used):
            return prefix
    raise VmsUnavailable("no network is free between 10.64.0.0/24 and 10.127.255.0/24")


def make_bridge(name: str, address: str) -> None:
    """Make the bridge, which has this machine's address on it.

    Raises
    ------
    VmsUnavailable
        It cannot be made.
    """
    batch(
        f"link add {name} type bridge stp_state 0 mcast_snooping 0",
        f"link set {name} addrgenmode none",
        f"address add {address}/24 broadcast + dev {name}",
        f"link set {name} up",
    )


def join(vm: Vm, bridge: str) -> None:
    """Make a VM's namespace and its link to the bridge.

    Raises
    ------
    VmsUnavailable
        They cannot be made.
    """
    call("ip", "netns", "add", vm.namespace)
    batch(
        f"link add {vm.outer} type veth peer name {vm.interface} netns {vm.namespace}",
        f"link set {vm.outer} addrgenmode none",  # IPv4 only: no link-local addresses
        f"link set {vm.outer} master {bridge}",
        f"link set {vm.outer} up",
    )
    batch(
        "link set lo up",
        f"link set {vm.interface} addrgenmode none",
        f"address add {vm.address}/24 broadcast + dev {vm.interface}",
        f"link set {vm.interface} up",
        namespace=vm.namespace,
    )


def shape(vm: Vm, gbps: float | None) -> None:
    """Give a VM's link a rate, the same in both directions.

    Parameters
    ----------
    vm
        The VM.
    gbps
        Rate in Gbit/s, headers included; None for what the machine can do.

    Raises
    ------
    VmsUnavailable
        The kernel refused it.
    """
    for end in (("-n", vm.namespace), vm.interface), ((), vm.outer):
        where, device = end
        if gbps is None:
            # a device without a qdisc of its own has none to delete
            if "tbf" in call("tc", *where, "qdisc", "show", "dev", device):
                call("tc", *where, "qdisc", "delete", "dev", device, "root")
            continue
        bits = round(gbps * 1e9)
        burst = max(_LEAST_BURST_BYTES, round(bits / 8 * _SLACK_S))
        bucket = (*("rate", f"{bits}bit"), *("burst", f"{burst}b"), *("latency", f"{_QUEUE_MS}ms"))
        call("tc", *where, "qdisc", "replace", "dev", device, "root", "tbf", *bucket)


def cut(vm: Vm) -> None:
    """Let nothing through to a VM or from it, without telling anyone."""
    _set_port(vm, _DISABLED)


def mend(vm: Vm) -> None:
    """Undo `cut`."""
    _set_port(vm, _FORWARDING)


def _set_port(vm: Vm, state: int) -> None:
    # `ip link set` would do, were its last act not to enable a port that is disabled
    call("bridge", "link", "set", "dev", vm.outer, "state", str(state))


def check_reach(vm: Vm, *where: str) -> None:
    """Connect from a VM to each ``address:port``.

    Raises
    ------
    VmsUnavailable
        One did not answer.
    """
    command = (sys.executable, "-I", "-S", "-c", _CONNECT, *where)
    try:
        call("ip", "netns", "exec", vm.namespace, *command)
    except VmsUnavailable as error:
        words = str(error).rsplit("\n", 1)[-1]
        raise VmsUnavailable(
            f"{vm.name} ({vm.address}) does not reach {words}. A firewall of this machine "
            "probably drops what comes from the VMs (INPUT) or passes between them "
            "(FORWARD, with net.bridge.bridge-nf-call-iptables=1, as Docker sets it)"
        ) from error
