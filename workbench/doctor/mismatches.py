"""Rules about several VMs that train together: values that must be the same on all VMs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median_low

from workbench.doctor.facts import count, text_if_known
from workbench.doctor.finding import Severity
from workbench.doctor.gpus import same_gpu_twice
from workbench.doctor.nccl_settings import nccl_setting_mismatch
from workbench.doctor.pvrdma import PVRDMA_MISMATCHES
from workbench.doctor.rdma_mismatches import RDMA_MISMATCHES
from workbench.doctor.rule import (
    Case,
    Read,
    Rule,
    compare,
    mismatch_cases,
    must_match,
    rule,
    summary,
)
from workbench.doctor.vgpus import licence_mismatch
from workbench.resources import Gpu, Snapshot, Unknown
from workbench.resources.gpus.records import Ecc
from workbench.resources.pcie.distances import of_unknown_kind
from workbench.resources.pcie.records import TOPOLOGY_FILE
from workbench.resources.summary import show_bytes

_FILE_STATES = {
    "none": "no topology file",
    "missing": "a setting that names a topology file which does not exist",
    "broken": "a topology file that cannot be read",
    "refused": "a topology file that NCCL rejects",
}
_NO_GPU = "no GPU"
_SAME_MEMORY = 0.05  # MemTotal of equal VMs differs by the memory that each kernel reserves
_VM_FIX = "Ask for VMs of one size and one image; `workbench resources` on each shows what it has."
_VM_SOURCE = "PyTorch, Performance Tuning Guide, Load-balance workload in a distributed setting"


# Values of one VM


def _gpu_count(snapshot: Snapshot) -> str | None:
    probe = snapshot.probes.get("gpus")
    if snapshot.devices_of_unknown_kind or (probe is not None and probe.status == "unknown"):
        return None
    if snapshot.gpus:
        return count(len(snapshot.gpus), "GPU")
    failed = probe is not None and probe.status == "failed"
    return f"{_NO_GPU} that answers" if failed else _NO_GPU


def _gpu_models(snapshot: Snapshot) -> str | None:
    models = [_model(gpu) for gpu in snapshot.gpus]
    return None if None in models else summary([model for model in models if model])


def _model(gpu: Gpu) -> str | None:
    """Return model and form of a GPU; None if both are unknown, as in a topology file."""
    name = text_if_known(gpu.name)
    form = text_if_known(gpu.form)
    if gpu.form == "vgpu":
        form = (
            None
            if name and name.endswith(str(gpu.vgpu_profile))
            else text_if_known(gpu.vgpu_profile)
        )
    return ", ".join(filter(None, (name, form))) or None


def _driver(snapshot: Snapshot) -> str | None:
    versions = [
        (gpu.driver_version, text_if_known(gpu.cuda_version) or "not known")
        for gpu in snapshot.gpus
        if isinstance(gpu.driver_version, str)
    ]
    return summary([f"NVIDIA driver {driver} (CUDA {cuda})" for driver, cuda in versions])


def _nvlinks_up(snapshot: Snapshot) -> str | None:
    counts = sorted(len(gpu.links_up) for gpu in snapshot.gpus if gpu.known_links)
    words = summary([str(number) for number in counts])
    return None if words is None else f"{words} NVLinks up per GPU"


def _nvlink_pairs(snapshot: Snapshot) -> str | None:
    pairs = snapshot.gpu_pairs
    if isinstance(pairs, Unknown) or not pairs:
        return None
    answers = [pair.p2p_nvlink for pair in pairs]
    if any(isinstance(answer, Unknown) for answer in answers):
        return None
    joined = answers.count("ok")
    return f"NVLink between {'all' if joined == len(answers) else joined or 'no'} pairs of GPUs"


def _ecc(snapshot: Snapshot) -> str | None:
    modes = [gpu.ecc.enabled for gpu in snapshot.gpus if isinstance(gpu.ecc, Ecc)]
    words = summary(sorted("on" if mode else "off" for mode in modes if isinstance(mode, bool)))
    return None if words is None else f"ECC {words}"


def _topology_file(snapshot: Snapshot) -> str | None:
    pcie = snapshot.known_pcie
    if isinstance(pcie.topology_file_state, Unknown):
        return None
    status = pcie.topology_file_state.status
    if status in _FILE_STATES:
        return _FILE_STATES[status]
    tree = pcie.tree(TOPOLOGY_FILE)
    if tree is None:
        return None
    gpus, nics = (sum(device.kind == kind for device in tree.devices) for kind in ("gpu", "nic"))
    unknown_devices = len(of_unknown_kind(tree.devices))
    unknown_text = f", and {unknown_devices} devices of unknown kind" if unknown_devices else ""
    return f"a topology file of {gpus} GPUs and {nics} NICs{unknown_text}"


def _cores(snapshot: Snapshot) -> str | None:
    cpus = text_if_known(snapshot.host.cpus)
    return None if cpus is None else count(cpus, "usable core")


def _memory_bytes(snapshot: Snapshot) -> int | None:
    limit = snapshot.host.memory_limit_bytes
    total = snapshot.host.memory_bytes
    sizes = [size for size in (limit, total) if isinstance(size, int)]
    return min(sizes) if isinstance(total, int) else None


def _numa_nodes(snapshot: Snapshot) -> str | None:
    nodes = text_if_known(snapshot.host.numa_nodes)
    return None if nodes is None else count(nodes, "NUMA node")


def _kernel(snapshot: Snapshot) -> str | None:
    kernel = text_if_known(snapshot.host.kernel)
    return None if kernel is None else f"kernel {kernel}"


def _hypervisor(snapshot: Snapshot) -> str | None:
    hypervisor = text_if_known(snapshot.host.hypervisor)
    return "no hypervisor" if hypervisor == "none" else hypervisor


# Comparisons with texts that depend on the values


@rule(
    "warning",
    name="gpus_unlike",
    why="Ranks are distributed by GPU: the VM with the fewest GPUs limits a cluster of equal VMs, "
    "and additional GPUs stay idle.",
    fix="Ask for VMs with the same GPUs, or set how many ranks each VM runs "
    "(`%cluster start --hosts vm1:4,vm2:8`).",
    source="Horovod, Run Horovod: hosts and slots",
)
def gpu_count_mismatch(snapshots: Mapping[str, Snapshot]) -> Iterator[Case]:
    """Compare the number of GPUs; a VM without a GPU is an error."""
    mismatch = compare(snapshots, _gpu_count)
    if mismatch is None:
        return
    case = Case(mismatch.evidence, mismatch.vms)
    if any(value.startswith(_NO_GPU) for value in mismatch.values.values()):
        cost = "Ranks without a GPU cannot train together with ranks that have one."
        case = replace(case, severity="error", why=cost)
    yield case


@rule(
    "info",
    name="machines_unlike",
    why="The VM with the least memory limits the workers and the caches of the data loaders.",
    fix=_VM_FIX,
    source=_VM_SOURCE,
)
def memory_mismatch(snapshots: Mapping[str, Snapshot]) -> list[Case]:
    """Compare the size of memory; sizes within 5 % of the usual size count as equal."""
    sizes = [
        size for snapshot in snapshots.values() if (size := _memory_bytes(snapshot)) is not None
    ]
    usual = median_low(sizes) if sizes else 0

    def memory(snapshot: Snapshot) -> str | None:
        size = _memory_bytes(snapshot)
        if size is None:
            return None
        is_usual = abs(size - usual) <= _SAME_MEMORY * usual
        return f"{show_bytes(usual if is_usual else size)} of memory"

    return mismatch_cases(snapshots, memory)


def _vm_must_match(
    severity: Severity,
    read: Read,
    compared: str,
    why: str,  # language: a field of findings
) -> Rule[Mapping[str, Snapshot]]:
    return must_match(
        "machines_unlike",
        severity,
        read,
        compared=compared,
        why=why,
        fix=_VM_FIX,
        source=_VM_SOURCE,
    )


MISMATCHES: tuple[Rule[Mapping[str, Snapshot]], ...] = (
    same_gpu_twice,
    gpu_count_mismatch,
    must_match(
        "gpus_unlike",
        "warning",
        _gpu_models,
        compared="the models of the GPUs, and the forms or vGPU profiles in which the VMs have "
        "them",
        why="Every step waits for the slowest rank: faster GPUs, and those with more memory, work "
        "at the pace and with the batch of the others.",
        fix="Ask for VMs of one kind: the same model in the same form, vGPUs of the same profile.",
        source="PyTorch, DistributedDataParallel: ranks in step",
    ),
    must_match(
        "drivers_unlike",
        "warning",
        _driver,
        compared="the versions of the NVIDIA driver and of its CUDA",
        why="A program built for the newer CUDA does not start on the older driver, and NCCL may "
        "choose different transports, so that errors occur on one VM only.",
        fix="Install the same driver on every VM; for a vGPU one that matches the host's "
        "(`nvidia-smi --query-gpu=driver_version --format=csv`).",
        source="NVIDIA, CUDA Compatibility; Virtual GPU Software, Release Notes",
    ),
    licence_mismatch,
    *(
        must_match(
            "nvlinks_unlike",
            "warning",
            read,
            compared=compared,
            why="Within the VM that has less, gradients go over PCIe or through host memory; the "
            "ranks of all other VMs wait for it.",
            fix="`nvidia-smi nvlink --status` and `nvidia-smi topo -m` on those VMs; for vGPUs "
            "ask whether all come from device groups of one size with NVLink.",
            source="NVIDIA, NCCL User Guide, Troubleshooting, GPU-to-GPU communication",
        )
        for read, compared in (
            (_nvlinks_up, "how many NVLinks of each GPU are up"),
            (_nvlink_pairs, "how many pairs of GPUs are connected by NVLink"),
        )
    ),
    must_match(
        "ecc_unlike",
        "info",
        _ecc,
        compared="whether ECC is on",
        why="With ECC off, memory errors enter the gradients of all ranks unnoticed; on some "
        "boards ECC costs memory and bandwidth.",
        fix="The same on all: `sudo nvidia-smi -e 1`, then a reset or restart.",
        source="NVIDIA, nvidia-smi documentation, ECC Mode",
    ),
    *RDMA_MISMATCHES,
    *PVRDMA_MISMATCHES,
    must_match(
        "topology_files_unlike",
        "warning",
        _topology_file,
        compared="whether NCCL reads a topology file, and how many GPUs and NICs it lists",
        why="NCCL searches rings and trees over what every rank reports: if one VM shows another "
        "machine than the rest, all use the slower common denominator, or GPUDirect RDMA is used "
        "on one side only.",
        fix="The same file on every VM of a kind, and the same `NCCL_TOPO_FILE=FILE` in the "
        "environment or in /etc/nccl.conf.",
        source="NVIDIA, NCCL User Guide, Environment Variables, NCCL_TOPO_FILE",
    ),
    nccl_setting_mismatch,
    _vm_must_match(
        "warning",
        _cores,
        "the numbers of usable cores",
        "On the VM with fewer cores, data loaders and communication threads wait for a core, and "
        "every step of all VMs waits for them.",
    ),
    memory_mismatch,
    _vm_must_match(
        "info",
        _numa_nodes,
        "the numbers of NUMA nodes",
        "Cores, GPUs and NICs are grouped differently: a CPU binding that is right for one VM is "
        "wrong for another.",
    ),
    _vm_must_match(
        "info",
        _kernel,
        "the versions of the kernel",
        "The kernel includes drivers, RDMA and networking: a different kernel may cause errors "
        "on some VMs only.",
    ),
    _vm_must_match(
        "info",
        _hypervisor,
        "the hypervisors",
        "Hypervisors show PCIe, clocks and NUMA differently: NCCL may choose different paths.",
    ),
)
"""All rules over several VMs, in the order of a report."""
