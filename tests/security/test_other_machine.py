"""Another machine in the network of the VMs, a network namespace: it has no keys."""

from __future__ import annotations

from planted import stranger


def listening_in(machines, name):
    """The TCP ports on which anything listens in a VM, as ``(address, port)``."""
    text = machines.run(name, ["ss", "-ltnH"]).stdout
    ends = [line.split()[3] for line in text.splitlines()]
    return {(end.rpartition(":")[0].strip("[]"), int(end.rpartition(":")[2])) for end in ends}


def test_ports_of_the_kernels_machine(across):
    """Those on the VMs' interface speak to who has keys alone; the others are not reachable."""
    running, machines = across
    ports = running.listening()
    shared = {end for end in ports if end[0] == machines.kernel_address}
    local = {end for end in ports if end[0] == "127.0.0.1"}
    assert shared
    assert set(ports) == shared | local
    asked = [*shared, *((machines.kernel_address, port) for _, port in local)]
    found = stranger({"ports": asked}, inside=lambda command: machines.inside("vm3", command))[
        "ports"
    ]
    kinds = {end: found[f"{end[0]}:{end[1]}"] for end in asked}
    assert {kinds[end] for end in shared} == {"ZeroMQ CURVE"}, kinds
    assert {kinds[machines.kernel_address, port] for _, port in local} <= {"closed"}, kinds
    assert running.run("rank + 1") == {"0": 1, "1": 2}


def test_vms_listen_on_ssh_alone(across):
    """Agents and ranks of VMs have no port once the ring is formed."""
    _, machines = across
    for name in ("vm1", "vm2"):
        assert {port for _, port in listening_in(machines, name)} == {22}
