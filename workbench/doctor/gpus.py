"""Rules about the state of each GPU: its driver, memory, clocks, PCIe link and modes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import combinations

from workbench.doctor.facts import first_of
from workbench.doctor.finding import Severity
from workbench.doctor.rule import Case, each_gpu, rule
from workbench.resources import Gpu, Snapshot, Unknown
from workbench.resources.gpus.records import Ecc, GpuClocks, PcieLink
from workbench.resources.summary import show_bytes
from workbench.resources.usage import ProcessUse, Sample

# The reason of an unknown value begins with these words if NVML answers GPU_IS_LOST or
# RESET_REQUIRED.
_LOST = "the GPU is lost"
_NEEDS_RESET = "the GPU needs a reset"
_SEARCH_XID = (
    "Save the training. `sudo dmesg | grep -i xid` shows what happened before (79: it fell off "
    "the bus). "
)
_REPLACE = (
    "Take the GPU out of use and ask the administrator to run NVIDIA's field diagnostic and to "
    "have the GPU replaced (RMA)."
)
_CHECK_COOLING = (
    "Check whether it lasts (`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`): changing clocks "
    "may show it for a moment. If it does, ask the administrator to check the fans, the air flow "
    "and the power supplies of the host."
)
_CHECK_POWER_LIMIT = (
    "`nvidia-smi -q -d POWER` shows the limit; if it is below the default limit, "
    "`sudo nvidia-smi -pl WATTS` (on the host, for a vGPU) raises it."
)
# Names in `GpuClocks.held_by`. All other names mean that the clocks were chosen, or that the GPU
# is idle.
_THROTTLING: dict[str, tuple[Severity, str]] = {
    "hardware slowdown": ("warning", _CHECK_COOLING),
    "thermal (hardware)": ("warning", _CHECK_COOLING),
    "thermal (software)": ("warning", _CHECK_COOLING),
    "power brake": ("warning", _CHECK_COOLING),
    "power cap": ("info", _CHECK_POWER_LIMIT),
}
_IDLE_S = 5 * 60
_IDLE_TOO_LONG_S = 30 * 60


@rule(
    "error",
    why="Nothing in this VM can use its GPU: training runs on the CPU.",
    fix="Install the guest driver that matches the host's vGPU manager (for passthrough: the "
    "data-centre driver), then `sudo modprobe nvidia`. Start a container with `--gpus all` under "
    "the NVIDIA Container Toolkit.",
    source="NVIDIA, Virtual GPU Software User Guide, Installing the guest VM driver",
)
def driver_not_loaded(snapshot: Snapshot) -> Iterator[Case]:
    """Find NVIDIA display devices on the PCI bus where NVML finds no GPU."""
    addresses = snapshot.host.nvidia_pci_addresses
    probe = snapshot.probes["gpus"]
    if not isinstance(addresses, Unknown) and addresses and probe.status == "absent":
        yield Case(f"NVIDIA GPU on the PCI bus at {', '.join(addresses)}, but {probe.reason}")


@rule(
    "error",
    why="A rank on this GPU fails at its first CUDA call, and all other ranks wait for it.",
    source="NVIDIA, XID Errors (79, GPU has fallen off the bus)",
)
@each_gpu
def gpu_lost(gpu: Gpu) -> Case | None:
    """Find GPUs that fell off the bus, or that need a reset."""
    values = (getattr(gpu, field.name) for field in fields(gpu))
    for value in values:
        if not isinstance(value, Unknown):
            continue
        if value.reason.startswith(_LOST):
            fix = (
                "Restart the VM; if it happens again, ask the administrator to check the GPU's "
                "power, temperature and seat on the host."
            )
            return Case(value.reason, fix=_SEARCH_XID + fix)
        if value.reason.startswith(_NEEDS_RESET):
            fix = (
                "`sudo nvidia-smi --gpu-reset -i N` if the VM may do that, otherwise restart the "
                "VM."
            )
            return Case(value.reason, fix=_SEARCH_XID + fix)
    return None


@rule(
    "warning",
    why="The driver ends a process that hits such an error in its memory, and with it the "
    "training on all ranks.",
    fix="Save the training, then reset the GPU: `sudo nvidia-smi --gpu-reset -i N` if the VM may "
    "do that, otherwise restart the VM. If errors come back, ask the administrator to run "
    "NVIDIA's field diagnostic.",
    source="NVIDIA, GPU Memory Error Management",
)
@each_gpu
def ecc_errors(gpu: Gpu) -> Case | None:
    """Find uncorrected errors since the driver was loaded, and rows that need replacing."""
    ecc = gpu.ecc
    if not isinstance(ecc, Ecc):
        return None
    if ecc.remapping_failed is True:
        evidence = "a row of memory with errors could not be remapped"
        return Case(evidence, severity="error", fix=_REPLACE)
    problems = []
    if isinstance(ecc.volatile_uncorrected, int) and ecc.volatile_uncorrected > 0:
        problems.append(
            f"uncorrected memory errors since the driver was loaded: {ecc.volatile_uncorrected}"
        )
    if ecc.remapping_pending is True:
        problems.append("the remapping of a row of memory waits for a reset")
    return Case("; ".join(problems)) if problems else None


@rule("warning", source="NVIDIA, NVML API reference, NvmlClocksEventReasons")
@each_gpu
def throttled(gpu: Gpu) -> Case | None:
    """Find GPUs with clocks that heat, a power brake or the power cap reduces at this moment."""
    clocks = gpu.clocks
    if not isinstance(clocks, GpuClocks) or not isinstance(clocks.held_by, tuple):
        return None
    reasons = [reason for reason in clocks.held_by if reason in _THROTTLING]
    if not reasons:
        return None
    severity, fix = next(_THROTTLING[reason] for reason in _THROTTLING if reason in reasons)
    return Case(
        f"clocks are held down by: {', '.join(reasons)}",
        severity=severity,
        fix=fix,
        why="Every step waits for the slowest rank: one GPU at lower clocks slows all ranks down."
        if severity == "warning"
        else "At full load a GPU may well run at its power cap; one with a lower cap than the "
        "others slows all ranks down.",
    )


@rule(
    "warning",
    why="Batches from the host, and gradients if there is no NVLink, cross this link at a "
    "fraction of its speed.",
    fix="`nvidia-smi -q | grep -A8 'GPU Link Info'` under load; then ask the administrator to "
    "reseat card and riser and to check the slot's settings in the BIOS.",
    source="NVIDIA, nvidia-smi documentation, GPU Link information",
)
@each_gpu
def pcie_link_reduced(gpu: Gpu) -> Case | None:
    """Find links below the maximum of GPU and slot; the generation counts only on a busy GPU."""
    link = gpu.pcie_link
    if not isinstance(link, PcieLink):
        return None
    reductions = []
    if _is_below(link.width, link.width_max):
        reductions.append(f"x{link.width} of x{link.width_max}")
    if _is_below(link.generation, link.generation_max) and _is_busy(gpu):
        reductions.append(f"generation {link.generation} of {link.generation_max}")
    return Case(f"PCIe link at {', '.join(reductions)}") if reductions else None


def _is_below(value: object, maximum: object) -> bool:
    return isinstance(value, int) and isinstance(maximum, int) and value < maximum


def _is_busy(gpu: Gpu) -> bool:
    """Return whether the GPU is certainly busy: not reported as idle, and with a high clock."""
    clocks = gpu.clocks
    if not isinstance(clocks, GpuClocks) or not isinstance(clocks.held_by, tuple):
        return False
    if not isinstance(clocks.sm_mhz, int) or not isinstance(clocks.sm_max_mhz, int):
        return False
    return "idle" not in clocks.held_by and 2 * clocks.sm_mhz > clocks.sm_max_mhz


@rule(
    "info",
    why="The first process after a pause waits until the GPU is initialised again, and settings "
    "made with nvidia-smi are lost.",
    fix="`sudo systemctl enable --now nvidia-persistenced`; if that service is missing, "
    "`sudo nvidia-smi -pm 1` after each start.",
    source="NVIDIA, Driver Persistence",
)
@each_gpu
def persistence_mode_off(gpu: Gpu) -> Case | None:
    """Find GPUs whose state the driver discards when the last process exits."""
    return Case("persistence mode is off") if gpu.persistence_mode is False else None


@rule(
    "info",
    why="One rank per GPU works; a second rank, or the notebook's own kernel, that uses the same "
    "GPU gets an error.",
    fix="`sudo nvidia-smi -c DEFAULT` for all GPUs of this VM (with `-i N` for one).",
    source="NVIDIA, nvidia-smi documentation, compute mode",
)
@each_gpu
def compute_mode(gpu: Gpu) -> Case | None:
    """Find GPUs that accept no process, or only one."""
    evidence = f"compute mode is {gpu.compute_mode}"
    if gpu.compute_mode == "prohibited":
        cost = "No process may use CUDA on it: training stops at its first call."
        return Case(evidence, severity="error", why=cost)
    return Case(evidence) if gpu.compute_mode == "exclusive process" else None


@rule(
    "error",
    why="They are one machine under two names, or two containers with one GPU: their ranks share "
    "its memory and its time, and NCCL stops if it detects that (Duplicate GPU detected).",
    fix="Name each VM once in `--hosts`; give each container GPUs of its own "
    "(`docker run --gpus '\"device=1\"'`).",
    source="NVIDIA, NCCL, src/init.cc, Duplicate GPU detected",
)
def same_gpu_twice(snapshots: Mapping[str, Snapshot]) -> Iterator[Case]:
    """Find VMs that show the same GPU."""
    uuids = {
        vm: {gpu.uuid for gpu in snapshot.gpus if isinstance(gpu.uuid, str)}
        for vm, snapshot in snapshots.items()
    }
    for first, second in combinations(uuids, 2):
        shared = sorted(uuids[first] & uuids[second])
        if shared:
            yield Case(f"both show {first_of(shared, 2)}", f"{first}, {second}")


@rule(
    "info",
    why="Other users cannot use this memory and, in a shared pool, this GPU.",
    fix="`nvidia-smi` lists the processes on it; end them, or ask their owner.",
    source="NVIDIA, nvidia-smi documentation, Utilization; PyTorch, CUDA semantics, "
    "Memory management",
)
def gpu_idle(sample: Sample) -> Iterator[Case]:
    """Find GPUs that are idle for minutes while a process has memory allocated on them."""
    for gpu in sample.gpus:
        if isinstance(gpu.idle_s, Unknown) or gpu.idle_s < _IDLE_S:
            continue
        processes = () if isinstance(sample.processes, Unknown) else sample.processes
        users = [
            process for process in processes if any(use.index == gpu.index for use in process.gpus)
        ]
        words = "; ".join(_process_words(process, gpu.index) for process in users)
        yield Case(
            f"idle for {_duration(gpu.idle_s)} with memory allocated on it"
            + (f": {words}" if words else ""),
            f"GPU {gpu.index}",
            severity="warning" if gpu.idle_s >= _IDLE_TOO_LONG_S else "info",
            fix=" ".join(dict.fromkeys(map(_how_to_free, users))) or None,
        )


def _process_words(process: ProcessUse, index: int) -> str:
    share = next(gpu_use for gpu_use in process.gpus if gpu_use.index == index)
    used = share.memory_used_bytes
    size = "" if isinstance(used, Unknown) else f", {show_bytes(used)}"
    return f"{_process_name(process)} (pid {process.pid}{size})"


def _process_name(process: ProcessUse) -> str:
    if process.kind == "rank":
        suffix = f" of cluster {process.cluster}" if process.cluster else ""
        return f"rank {process.rank}{suffix}" if process.rank is not None else f"a rank{suffix}"
    if process.kind == "kernel":
        return f"the kernel of {process.notebook}" if process.notebook else "a Jupyter kernel"
    return process.name


def _how_to_free(process: ProcessUse) -> str:
    if process.kind == "rank":
        return "`%cluster stop`, and next time `%cluster start --release-after 30m`."
    if process.kind == "kernel":
        return (
            "Shut the kernel down, or in it `del` what is on the GPU and then call "
            "`torch.cuda.empty_cache()`."
        )
    return f"`kill {process.pid}` if it is yours."


def _duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
