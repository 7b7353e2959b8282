"""The network of the VMs: one bridge, a link of a chosen rate to each, and their ``/etc``.

`ip netns exec` mounts the content of ``/etc/netns/NAMESPACE`` on ``/etc``.
"""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import VmsUnavailable
from workbench.testbed.commands import batch, call

KERNEL_HOST = 254
"""Last number of this machine's address; the last numbers of the VMs' addresses start at 1."""

# The token bucket holds as much as a link sends in this time, so a timer may be late by this time.
# With a smaller bucket, TCP on a busy machine does not reach the link's rate.
_SLACK_S = 0.5e-3
# TCP sends up to 64 KiB at a time. A smaller bucket would split each such block.
_MIN_BURST_BYTES = 128 << 10
# How long a packet waits in the queue before it is dropped, as in a switch's buffer.
_QUEUE_MS = 5

# A disabled bridge port drops packets in both directions. The VM would notice a link that
# is down, and a port removed from the bridge would let this machine itself answer.
_DISABLED = 0
_FORWARDING = 3

_CONNECT = """
import socket, sys
for where in sys.argv[1:]:
    host, port = where.split(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
    except OSError as error:
        sys.exit(f"{where}: {error}")
"""
NETNS = Path("/etc/netns")
_SHADOW = Path("/etc/shadow")


@dataclass(frozen=True)
class Vm:
    """The names of a VM.

    Attributes
    ----------
    name
        Host name.
    address
        IPv4 address.
    interface
        Network interface in the VM: the VM's end of the link.
    bridge_port
        Network interface outside the VM: the bridge's end of the link.
    namespace
        Network namespace.
    """

    name: str
    address: str
    interface: str
    bridge_port: str
    namespace: str


def free_subnet(used_prefixes: Iterable[str]) -> str:
    """Return the first three numbers of a free ``/24``, such as ``"10.64.7"``.

    `used_prefixes` are the networks in use, in the same form.
    """
    used_networks = [ipaddress.IPv4Network(f"{prefix}.0/24") for prefix in used_prefixes]
    for route in json.loads(call("ip", "-json", "-4", "route", "show", "table", "all") or "[]"):
        if route["dst"] != "default":
            network = ipaddress.IPv4Network(route["dst"], strict=False)
            # A route to a larger network (of a VPN) does not conflict with a more specific one.
            if network.prefixlen > 8:
                used_networks.append(network)
    first = os.getpid() << 4
    for number in range(first, first + (64 << 8)):
        prefix = f"10.{64 + (number >> 8) % 64}.{number & 255}"
        if not any(
            ipaddress.IPv4Network(f"{prefix}.0/24").overlaps(other) for other in used_networks
        ):
            return prefix
    raise VmsUnavailable(
        "no network between 10.64.0.0/24 and 10.127.255.0/24 is free. Remove VMs or routes."
    )


def make_bridge(name: str, address: str) -> None:
    """Create the bridge, with this machine's address."""
    batch(
        f"link add {name} type bridge stp_state 0 mcast_snooping 0",
        f"link set {name} addrgenmode none",
        f"address add {address}/24 broadcast + dev {name}",
        f"link set {name} up",
    )


def join(vm: Vm, bridge: str) -> None:
    """Create a VM's namespace and its link to the bridge."""
    call("ip", "netns", "add", vm.namespace)
    batch(
        f"link add {vm.bridge_port} type veth peer name {vm.interface} netns {vm.namespace}",
        f"link set {vm.bridge_port} addrgenmode none",  # IPv4 only: no link-local addresses
        f"link set {vm.bridge_port} master {bridge}",
        f"link set {vm.bridge_port} up",
    )
    batch(
        "link set lo up",
        f"link set {vm.interface} addrgenmode none",
        f"address add {vm.address}/24 broadcast + dev {vm.interface}",
        f"link set {vm.interface} up",
        namespace=vm.namespace,
    )


def shape(vm: Vm, gbps: float | None) -> None:
    """Set the rate of a VM's link in both directions, in Gbit/s with headers; None: unlimited."""
    for end in (("-n", vm.namespace), vm.interface), ((), vm.bridge_port):
        namespace_arguments, device = end
        if gbps is None:
            # Only a device with a token bucket has a qdisc that can be deleted.
            if "tbf" in call("tc", *namespace_arguments, "qdisc", "show", "dev", device):
                call("tc", *namespace_arguments, "qdisc", "delete", "dev", device, "root")
            continue
        bits = round(gbps * 1e9)
        burst = max(_MIN_BURST_BYTES, round(bits / 8 * _SLACK_S))
        bucket = (*("rate", f"{bits}bit"), *("burst", f"{burst}b"), *("latency", f"{_QUEUE_MS}ms"))
        call("tc", *namespace_arguments, "qdisc", "replace", "dev", device, "root", "tbf", *bucket)


def cut(vm: Vm) -> None:
    """Drop all packets from and to a VM, without an error on either side."""
    _set_port(vm, _DISABLED)


def mend(vm: Vm) -> None:
    """Undo `cut`."""
    _set_port(vm, _FORWARDING)


def _set_port(vm: Vm, state: int) -> None:
    # Not `ip link set`: it would enable a disabled port again.
    call("bridge", "link", "set", "dev", vm.bridge_port, "state", str(state))


def check_connections(vm: Vm, *addresses: str) -> None:
    """Connect from a VM to each ``address:port``."""
    command = (sys.executable, "-I", "-S", "-c", _CONNECT, *addresses)
    try:
        call("ip", "netns", "exec", vm.namespace, *command)
    except VmsUnavailable as error:
        reason = str(error).rsplit("\n", 1)[-1]
        raise VmsUnavailable(
            f"{vm.name} ({vm.address}) cannot connect to {reason}. A firewall of this machine "
            "probably drops packets from the VMs (INPUT) or between them (FORWARD, with "
            "net.bridge.bridge-nf-call-iptables=1, as set by Docker)"
        ) from error


def write_etc(vm: Vm, all_vms: Sequence[Vm], own_name_on_loopback: bool) -> None:
    """Write the files of a VM's ``/etc`` that differ from this machine's."""
    folder = NETNS / vm.namespace
    folder.mkdir(parents=True)
    hosts = hosts_text(vm, all_vms, own_name_on_loopback)
    (folder / "hosts").write_text(hosts, encoding="utf-8")
    shadow_text = _unlocked_root()
    if shadow_text is not None:
        shadow = folder / "shadow"
        shadow.touch(mode=0o600)
        shadow.write_text(shadow_text, encoding="utf-8")


def hosts_text(vm: Vm, all_vms: Sequence[Vm], own_name_on_loopback: bool) -> str:
    """Return a VM's ``/etc/hosts``.

    If `own_name_on_loopback`, it maps the VM's own name to 127.0.1.1, as Debian's installer
    does.

    Examples
    --------
    >>> vms = [Vm(f"vm{n}", f"10.64.7.{n}", "eth0", f"port{n}", f"vm{n}") for n in (1, 2)]
    >>> print(hosts_text(vms[0], vms, own_name_on_loopback=True).expandtabs(11))
    127.0.0.1  localhost
    ::1        localhost ip6-localhost ip6-loopback
    127.0.1.1  vm1
    10.64.7.2  vm2
    <BLANKLINE>
    """
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    for other in all_vms:
        on_loopback = other == vm and own_name_on_loopback
        lines.append(f"{'127.0.1.1' if on_loopback else other.address}\t{other.name}")
    return "\n".join(lines) + "\n"


def _unlocked_root() -> str | None:
    """Return a shadow file that allows root to log in with a key; None if not needed.

    An sshd without PAM rejects a user with a password locked by an exclamation mark, even if the
    user has a key. Ubuntu locks root's password in this way.
    """
    try:
        lines = _SHADOW.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    root = next((line.split(":") for line in lines if line.startswith("root:")), None)
    if root is None:
        return None
    name, password, *other_fields = root
    if not password.startswith("!"):
        return None
    return ":".join([name, "*", *other_fields]) + "\n"
