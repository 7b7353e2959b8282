"""Rules about VMware's paravirtual RDMA adapters: one VM, and several."""

from dataclasses import replace

import pytest
from fake_machine import Machine, roce_gids, snap

from workbench.doctor import diagnose, diagnose_all
from workbench.resources import Snapshot

VMXNET3, PVRDMA = "0000:0b:00.0", "0000:0b:00.1"
LINK_LOCAL = roce_gids("ens224")[1]


def add_vmxnet3(machine, *, interface="ens224"):
    device = machine.add_pci(VMXNET3, vendor="0x15ad", device="0x07b0", driver="vmxnet3")
    if interface:
        machine.add_interface(interface, device=device, mtu=9000)


def add_function(machine, driver=""):
    """Function 1, whose class shows that it is a NIC."""
    return machine.add_pci(
        PVRDMA, vendor="0x15ad", device="0x0820", pci_class="0x028000", driver=driver
    )


def add_pvrdma(machine, **port):
    """The complete adapter, as a VM has it whose driver works."""
    add_vmxnet3(machine)
    values = {
        "hca_type": "VMW_PVRDMA-1.0.1.0-k", "link_layer": "Ethernet", "counters": False,
        "gids": roce_gids("ens224"), **port,
    }  # fmt: skip
    machine.add_rdma("vmw_pvrdma0", device=add_function(machine, "vmw_pvrdma"), **values)


def found(snapshot, name):
    """The findings of a rule; they are the same for a snapshot from a file."""
    sent = Snapshot.from_json(snapshot.to_json())
    assert diagnose(sent) == diagnose(snapshot)
    return [one for one in diagnose(snapshot) if one.rule == name]


def test_an_adapter_that_works(machine):
    """Only what it cannot do is reported, and that a fallback to TCP is not seen in the guest."""
    add_pvrdma(machine)
    (finding,) = [
        one for one in diagnose(snap(machine)) if "rdma" in one.rule or "roce" in one.rule
    ]
    assert (finding.rule, finding.severity) == ("pvrdma", "info")
    assert "it uses TCP if one of them has no RDMA adapter" in finding.why
    assert "%fabric matrix" in finding.fix


def test_the_module_is_not_loaded(machine):
    """The function is there with its partner, and no RDMA device: the module is the reason."""
    add_vmxnet3(machine)
    add_function(machine)
    (machine.sysfs / "module").mkdir()
    (finding,) = found(snap(machine), "pvrdma_without_device")
    assert finding.severity == "error"
    assert finding.evidence.endswith("has no RDMA device: the module vmw_pvrdma is not loaded")
    assert "modprobe" in finding.fix


def test_the_module_is_loaded_and_refuses(machine):
    """Then the kernel's log has the reason, and loading it again is no fix."""
    add_vmxnet3(machine)
    add_function(machine)
    (machine.sysfs / "module/vmw_pvrdma").mkdir(parents=True)
    (finding,) = found(snap(machine), "pvrdma_without_device")
    assert finding.evidence.endswith("has no RDMA device")
    assert "dmesg" in finding.fix
    assert "modprobe" not in finding.fix


def test_the_partner_has_no_interface(machine):
    """The driver pairs with the interface of function 0: vmxnet3 first."""
    add_vmxnet3(machine, interface="")
    add_function(machine)
    (finding,) = found(snap(machine), "pvrdma_without_device")
    assert f"its partner {VMXNET3} has no interface" in finding.evidence
    assert "Load vmxnet3, and then vmw_pvrdma" in finding.fix


@pytest.mark.parametrize("other", [None, "0x100f"])
def test_the_partner_is_another_adapter(machine, other):
    """Function 0 is missing, or is an E1000: the adapter was not added as PVRDMA."""
    if other:
        machine.add_pci(VMXNET3, vendor="0x8086", device=other)
    add_function(machine)
    (finding,) = found(snap(machine), "pvrdma_without_device")
    assert f"its partner {VMXNET3} is no VMXNET3 adapter" in finding.evidence
    assert "add it again as a network adapter of type PVRDMA" in finding.fix


def test_a_port_that_is_down(machine):
    """What to check is the switch, as there is no cable."""
    add_pvrdma(machine, state="1: DOWN")
    (finding,) = found(snap(machine), "rdma_port_not_active")
    assert "vSphere Distributed Switch whose only uplink is an RDMA adapter" in finding.fix
    assert "cable" not in finding.fix


def test_gids_without_an_ip_address(machine):
    """RoCE v2 with a link-local address only; without any entry another rule reports it."""
    add_pvrdma(machine, gids={0: LINK_LOCAL})
    (finding,) = found(snap(machine), "pvrdma_without_ip")
    assert finding.evidence.startswith("all 1 entries of its GID table are link-local")


@pytest.mark.parametrize("gids", [{}, roce_gids("ens224")])
def test_gids_that_are_not_reported_as_without_an_ip_address(machine, gids):
    """None at all is `roce_without_v2_gid`; one with an address is right."""
    add_pvrdma(machine, gids=gids)
    assert found(snap(machine), "pvrdma_without_ip") == []
    assert bool(found(snap(machine), "roce_without_v2_gid")) == (not gids)


# several VMs


@pytest.fixture
def vm(tmp_path):
    """A function that returns the snapshot of a VM with PVRDMA, or with a ConnectX."""
    taken = []

    def vm(networks=("10.0.0.0/24",), *, pvrdma=True):
        machine = Machine(tmp_path / str(len(taken)))
        if pvrdma:
            add_pvrdma(machine, rate="100 Gb/sec (4X EDR)")
        else:
            device = machine.add_pci("0000:1a:00.0")
            machine.add_interface("ens224", device=device, mtu=9000)
            machine.add_rdma("mlx5_0", device=device, link_layer="Ethernet",
                             rate="100 Gb/sec (4X EDR)", gids=roce_gids("ens224"))  # fmt: skip
        one = snap(machine)
        nics = tuple(replace(nic, networks=networks) for nic in one.nics)
        taken.append(replace(one, nics=nics))
        return taken[-1]

    return vm


def unlike(*snapshots):
    findings = diagnose_all({f"vm{n}": one for n, one in enumerate(snapshots, 1)})
    return [one for one in findings if one.rule == "pvrdma_unlike"]


def test_equal_vms(vm):
    """One subnet, and PVRDMA everywhere or nowhere."""
    assert unlike(vm(), vm(), vm()) == []
    assert unlike(vm(pvrdma=False), vm(pvrdma=False)) == []


def test_pvrdma_on_some_vms(vm):
    """It reaches adapters of another kind only with newer versions."""
    (finding,) = unlike(vm(), vm(), vm(pvrdma=False))
    assert finding.subject == "vm3"
    assert "RDMA without PVRDMA" in finding.evidence
    assert "hardware version 18" in finding.why


def test_other_subnets(vm):
    """One VM in another subnet; networks that are unknown are left out."""
    (finding,) = unlike(vm(), vm(), vm(("10.0.1.0/24",)))
    assert finding.subject == "vm3"
    assert "PVRDMA in 10.0.1.0/24" in finding.evidence
    assert unlike(vm(), vm(()), vm()) == []
