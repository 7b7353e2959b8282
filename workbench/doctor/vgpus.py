"""Rules about vGPUs and MIG devices, and about the limits of their profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.doctor.facts import gpu_names, pair_names
from workbench.doctor.rule import Case, compare, each_gpu, group_gpus, rule, summary
from workbench.resources import Gpu, GpuPair, Snapshot, Unknown
from workbench.resources.gpus.records import Licence
from workbench.resources.gpus.vgpu import VgpuProfile, decode_profile


@rule(
    "warning",
    why="Such a vGPU has no peer-to-peer over NVLink: gradients between this VM's GPUs go "
    "through host memory.",
    source="NVIDIA, Virtual GPU Software User Guide, Peer-to-Peer CUDA transfers",
)
def vgpu_without_p2p(snapshot: Snapshot) -> Iterator[Case]:
    """Find vGPUs with a profile that rules out peer-to-peer over NVLink.

    Only time-sliced C-series vGPUs that own the entire frame buffer may use it.
    """
    for case in group_gpus(snapshot, _profile_without_p2p):
        if len(snapshot.gpus) > 1:
            yield case
        else:
            yield Case(
                case.evidence,
                case.subject,
                severity="info",
                why="It works alone; if a second one were added, the two would exchange gradients "
                "through host memory, not over NVLink.",
                fix=case.fix,
            )


def _profile_without_p2p(gpu: Gpu) -> Case | None:
    if gpu.form != "vgpu" or not isinstance(gpu.vgpu_profile, str):
        return None
    profile = decode_profile(gpu.vgpu_profile)
    reason = None if profile is None else _reason_without_p2p(profile)
    if profile is None or reason is None:
        return None
    suitable = (
        "A100-40C on a board of 40 GB"
        if isinstance(profile.board_memory_gb, Unknown)
        else f"{profile.board}-{profile.board_memory_gb}C"
    )
    return Case(
        f"profile {gpu.vgpu_profile}: {reason}",
        fix="Ask for time-sliced C-series profiles that own the entire frame buffer, such as "
        f"{suitable}, all from one device group; or for passthrough.",
    )


def _reason_without_p2p(profile: VgpuProfile) -> str | None:
    if profile.mig_backed:
        return f"it is backed by a MIG instance of {profile.slices} slices"
    if profile.whole_frame_buffer is False:
        return f"{profile.memory_gb} GB of the board's {profile.board_memory_gb} GB"
    return None if profile.series == "C" else f"series {profile.series}, where C is for compute"


@rule(
    "warning",
    why="A vGPU without a licence works at first; after a while the driver slows it down.",
    fix="Put the licence server's client configuration token into "
    "/etc/nvidia/ClientConfigToken, then `sudo systemctl restart nvidia-gridd`; "
    "`nvidia-smi -q | grep -i licen` shows the result, `journalctl -u nvidia-gridd` the reason "
    "if it fails.",
    source="NVIDIA, Virtual GPU Client Licensing User Guide",
)
@each_gpu
def vgpu_unlicensed(gpu: Gpu) -> Case | None:
    """Find vGPUs that run without a licence, according to their driver."""
    licence = gpu.licence
    if gpu.form != "vgpu" or not isinstance(licence, Licence) or licence.state != "unlicensed":
        return None
    product = f" ({licence.product})" if isinstance(licence.product, str) else ""
    return Case(f"profile {gpu.vgpu_profile} runs without a licence{product}")


@rule(
    "warning",
    name="licences_unlike",
    why="After a while the driver slows an unlicensed vGPU down, and every step of all VMs waits "
    "for its ranks.",
    fix="Copy /etc/nvidia/ClientConfigToken from a VM that is licensed, then "
    "`sudo systemctl restart nvidia-gridd` (`journalctl -u nvidia-gridd` shows why it fails).",
    source="NVIDIA, Virtual GPU Client Licensing User Guide",
)
def licence_mismatch(snapshots: Mapping[str, Snapshot]) -> Iterator[Case]:
    """Find VMs with unlicensed vGPUs, if vGPUs of other VMs have a licence.

    They are reported even if most VMs are unlicensed.
    """
    mismatch = compare(snapshots, _licences)
    if mismatch is not None:
        without = (vm for vm, value in mismatch.values.items() if "unlicensed" in value)
        yield Case(mismatch.evidence, ", ".join(without))


def _licences(snapshot: Snapshot) -> str | None:
    states = [
        gpu.licence.state
        for gpu in snapshot.gpus
        if gpu.form == "vgpu" and isinstance(gpu.licence, Licence)
    ]
    words = summary(sorted(state for state in states if isinstance(state, str)))
    return None if words is None else f"{words} vGPUs"


@rule(
    "error",
    why="In MIG mode CUDA runs on MIG devices only: without one it finds no GPU here.",
    fix="To use the entire GPU, switch MIG off: `sudo nvidia-smi -i N -mig 0`. Otherwise create a "
    "device, such as one of the entire GPU: `sudo nvidia-smi mig -i N -cgi 0 -C`.",
    source="NVIDIA, Multi-Instance GPU User Guide, Creating GPU Instances",
)
@each_gpu
def mig_without_devices(gpu: Gpu) -> Case | None:
    """Find GPUs in MIG mode that have no MIG device."""
    undivided = gpu.mig_mode is True and gpu.form in ("whole", "passthrough")
    return Case("MIG mode is on, but there is no MIG device") if undivided else None


@rule(
    "warning",
    why="MIG devices have no peer-to-peer, and NCCL allows one rank per GPU: with two ranks on "
    "one GPU it stops (Duplicate GPU detected).",
    fix="Give each MIG device a training of its own, or let the ranks communicate by Gloo, which "
    "goes through host memory. To train as one, ask for entire GPUs: "
    "`sudo nvidia-smi -i N -mig 0` if the VM may do that, with nothing running on it.",
    source="NVIDIA, Multi-Instance GPU User Guide, Application Considerations; NVIDIA/nccl#1716",
)
def mig_without_p2p(snapshot: Snapshot) -> Iterator[Case]:
    """Find several MIG devices in one VM; a single device works."""
    indices = [gpu.index for gpu in snapshot.gpus if gpu.form == "mig"]
    if len(indices) > 1:
        pronoun = "it" if len(set(indices)) == 1 else "them"
        yield Case(f"MIG divides {pronoun} into {len(indices)} devices", gpu_names(set(indices)))


@rule(
    "warning",
    why="On A100, unified memory disables NVLink for vGPUs: gradients between them go through "
    "host memory.",
    fix="In the VM's settings on the host, for each vGPU: "
    "`pciPassthru<n>.cfg.enable_uvm = 0` in vSphere, `enable_uvm=0` in the vGPU's "
    "vgpu_params under KVM. If it is off, ask whether the vGPUs come from one device group on "
    "GPUs that NVLink joins.",
    source="NVIDIA AI Enterprise, Peer-To-Peer (P2P) CUDA Transfers, known issues",
)
def unified_memory_on(snapshot: Snapshot) -> Iterator[Case]:
    """Find pairs of full A100 vGPUs that show PIX, and no peer-to-peer over NVLink."""
    if isinstance(snapshot.gpu_pairs, Unknown):
        return
    gpus = {gpu.index: gpu for gpu in snapshot.gpus}
    pairs = [
        pair
        for pair in snapshot.gpu_pairs
        if {pair.first, pair.second} <= set(gpus)
        and suggests_unified_memory(pair, gpus[pair.first], gpus[pair.second])
    ]
    if pairs:
        yield Case(
            f"peer-to-peer over NVLink is {pairs[0].p2p_nvlink}, and the driver shows PIX, "
            "though their profiles permit NVLink. This suggests that unified memory is on "
            "(the guest cannot read that switch; vGPUs on boards without a common NVLink show the "
            "same)",
            pair_names(f"{pair.first}-{pair.second}" for pair in pairs),
        )


def suggests_unified_memory(pair: GpuPair, first: Gpu, second: Gpu) -> bool:
    """Return whether two vGPUs may be A100s with unified memory: PIX instead of NVLink.

    The switch itself (`enable_uvm`) is on the host, and no guest can read it.
    """
    return (
        _is_whole_a100(first)
        and _is_whole_a100(second)
        and pair.topology == "PIX"
        and isinstance(pair.p2p_nvlink, str)
        and pair.p2p_nvlink != "ok"
    )


def _is_whole_a100(gpu: Gpu) -> bool:
    profile = gpu.vgpu if gpu.form == "vgpu" else None
    return (
        isinstance(profile, VgpuProfile)
        and profile.board.startswith("A100")
        and profile.p2p is True
    )
