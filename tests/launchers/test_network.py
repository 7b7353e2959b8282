"""Which interface carries the collectives: a choice by what the VMs reported."""

import dataclasses

import pytest

from workbench.cluster.launchers.placement import choose, kernel_address
from workbench.errors import StartFailed
from workbench.hosts import Host
from workbench.resources import Nic, Unknown, take_snapshot
from workbench.wire.agent_messages import Facts, Hello

UNKNOWN = Unknown("not here")


def hello(connection):
    return Hello(0, 0, "", "", "", 0, 0.0, connection)


class Vm:
    """An agent that has reported what it has; small, and without a process."""

    def __init__(self, name, *nics, interface=None, reached=""):
        self.name = name
        self.host = Host(name, interface=interface)
        self.hello = hello(f"10.0.0.254 5 {reached or nics[0][1]} 22")
        networks = {address: f"{address.rsplit('.', 1)[0]}.0/24" for _, address, *_ in nics}
        snapshot = dataclasses.replace(take_snapshot(), nics=tuple(nic(*one) for one in nics))
        self.facts = Facts(None, snapshot.to_plain(), {}, {}, [], networks)
        self.routes = {}

    def ask(self, kind, to):
        assert kind == "route"
        return [self.routes.get(target, {"source": "", "interface": ""}) for target in to]


def nic(name, address, kind="physical", rate=10.0, state="up"):
    values = dict.fromkeys((field.name for field in dataclasses.fields(Nic)), UNKNOWN)
    values |= {"name": name, "kind": kind, "rate_gbps": rate, "state": state, "gids": ()}
    return Nic(**values | {"addresses": (address,)})


def chosen(*vms):
    return [link.interface for link in choose(list(vms))]


def test_names_may_differ():
    """The network that all VMs are in decides, whatever each calls its interface."""
    assert chosen(Vm("a", ("eth0", "10.0.0.1")), Vm("b", ("ens192", "10.0.0.2"))) == [
        "eth0",
        "ens192",
    ]


def test_rdma_goes_before_plain_and_fast_before_slow():
    """A slower RDMA network is preferred to a plain one, and 25 Gbit/s to 10."""
    plain, fast = ("eth0", "10.0.0.{}", "physical", 100.0), ("eth1", "10.0.1.{}", "physical", 25.0)
    ib = ("ib0", "10.0.2.{}", "rdma", 50.0, "active")

    def vm(last, *nics):
        return Vm(f"vm{last}", *((n, a.format(last), *rest) for n, a, *rest in nics))

    assert chosen(vm(1, plain, ib), vm(2, plain, ib)) == ["ib0", "ib0"]
    slow = ("eth0", "10.0.0.{}", "physical", 10.0)
    assert chosen(vm(1, slow, fast), vm(2, slow, fast)) == ["eth1", "eth1"]


def test_an_address_that_two_vms_have_is_no_network_between_them():
    """A container bridge has the same address everywhere: it joins nobody."""
    bridge = ("docker0", "172.17.0.1", "virtual", 1000.0)
    assert chosen(Vm("a", ("eth0", "10.0.0.1"), bridge), Vm("b", ("eth0", "10.0.0.2"), bridge)) == [
        "eth0",
        "eth0",
    ]


def test_without_a_common_network_the_route_decides():
    """VMs behind routers use the interface by which they reach each other."""
    a, b = Vm("a", ("eth0", "10.1.0.1")), Vm("b", ("eth5", "10.2.0.1"))
    a.routes = {"10.2.0.1": {"source": "10.1.0.1", "interface": "eth0"}}
    b.routes = {"10.1.0.1": {"source": "10.2.0.1", "interface": "eth5"}}
    assert chosen(a, b) == ["eth0", "eth5"]


def test_no_route_is_reported_with_the_fix():
    """If no route is found, the error names the VM, and what to write."""
    with pytest.raises(StartFailed, match=r"a: no route .*interface=\.\.\. in the host file"):
        chosen(Vm("a", ("eth0", "10.1.0.1")), Vm("b", ("eth0", "10.2.0.1")))


def test_what_the_user_says_goes_first():
    """An interface that is named for a host is used there, and there only."""
    a = Vm("a", ("eth0", "10.0.0.1"), ("eth1", "10.9.0.1"), interface="eth1")
    b = Vm("b", ("eth0", "10.0.0.2"))
    assert chosen(a, b) == ["eth1", "eth0"]


def test_one_vm_connects_on_its_loopback():
    """Ranks of one VM need no network."""
    assert chosen(Vm("a", ("eth0", "10.0.0.1"))) == ["lo"]


def test_an_address_that_is_not_ours():
    """Behind a jump host the VMs see an address at which nothing can listen: that is reported."""
    vm = Vm("a", ("eth0", "10.0.0.1"))
    vm.hello = hello("192.0.2.77 5 10.0.0.1 22")
    with pytest.raises(StartFailed, match=r"at 192\.0\.2\.77, where it cannot listen"):
        kernel_address([vm])


def test_vms_that_see_different_addresses():
    """One port cannot be at two addresses: the error says which VM sees which."""
    a, b = Vm("a", ("eth0", "10.0.0.1")), Vm("b", ("eth0", "10.0.0.2"))
    b.hello = hello("10.7.0.254 5 10.0.0.2 22")
    with pytest.raises(StartFailed, match=r"a sees 10\.0\.0\.254, b sees 10\.7\.0\.254"):
        kernel_address([a, b])
