"""Every kind of figure that is compared with the truth, and its bounds."""

from dataclasses import dataclass

FRAME = "`timings.to_frame()`, live view"
CALLS = "`timings.collectives()`, waterfall, trace"
SUMMARY = "`%timings summary`, live view"
CAPTURE = "packets of the VM's link, captured with AF_PACKET"


@dataclass(frozen=True)
class Kind:
    """A kind of figure.

    Attributes
    ----------
    name
        The figure.
    group
        What measures it: a name in `tests.truth.__main__`.
    shown
        Where users see it.
    against
        The independent measurement.
    unit
        ``"%"`` for relative differences, ``"same"`` for what can only be equal, or the unit of
        absolute ones.
    median, high
        Bounds of the median and of the 95th percentile of the differences; of what can only be
        equal, of the share that is not.
    """

    name: str
    group: str
    shown: str
    against: str
    unit: str
    median: float
    high: float


def _same(name, group, shown, against, share=0.0):
    return Kind(name, group, shown, against, "same", share, share)


def _exact(name, group, shown, against):
    return Kind(name, group, shown, against, "%", 1e-9, 1e-9)


_OWN = "clocks in the user's script"
_PLAN = "arithmetic by hand"
_TRAINING = (
    *(
        Kind(f"phase: {phase}", "training", FRAME, f"{_OWN}, {what}", "ms", 0.3, 2.0)
        for phase, what in {
            "data": "around `next(loader)`",
            "forward": "around `model(x)`",
            "backward": "around `loss.backward()`",
            "exposed": "around `optimizer.synchronize()`",
            "optimizer": "around `optimizer.step()`",
            "other": "around a pause after the step",
        }.items()
    ),
    Kind("iteration time", "training", FRAME, f"{_OWN}, step to step", "%", 0.002, 0.02),
    Kind("sum of the phases", "training", FRAME, f"{_OWN}, step to step", "%", 0.002, 0.02),
    Kind("iterations per second", "training", SUMMARY, "steps and seconds of the loop", "%",
         0.005, 0.01),
    Kind("samples per second", "training", SUMMARY, "samples and seconds of the loop", "%",
         0.01, 0.02),
    Kind("epochs", "training", SUMMARY, "the loop's own count of batches", "%", 1e-9, 1e-9),
    Kind("time left in the epoch", "training", SUMMARY, "when the loop was at its end", "%",
         0.05, 0.15),
    Kind("hours lost to exposed communication", "training", f"{SUMMARY}, `%timings`",
         f"{_OWN}, added up", "%", 0.02, 0.02),
    _same("number of iterations", "training", f"{FRAME}, Prometheus", "the loop's own count"),
    _same("bytes and tensors of an iteration", "training", FRAME, "the model's parameters"),
    Kind("Prometheus: seconds by phase", "training", "`/metrics`", f"{_OWN}, per iteration", "ms",
         0.2, 1.0),
    _exact("Prometheus: totals", "training", "`/metrics`", "sums over `cluster.timings`"),
    _exact("a recorded run", "training", "`wb.open_run`", "`cluster.timings` of the same cell"),
    Kind("memory of a rank", "training", "sidebar, `cluster.memory_bytes()`",
         "`/proc/PID/status` before and after", "%", 0.005, 0.01),
    Kind("CPU of a rank", "training", "sidebar, `cluster.samples()`",
         "`/proc/PID/stat` at the same times", "points", 2.0, 5.0),
    Kind("CPU of a VM", "training", "sidebar, Prometheus", "`/proc/stat` at the same times",
         "points", 2.0, 5.0),
    Kind("memory of a VM", "training", "sidebar, Prometheus", "`/proc/meminfo`", "%", 0.01, 0.03),
    Kind("rank-hours allocated and in cells", "training", "`%resources use`",
         "seconds of this program's clock", "s", 3.0, 4.0),
)  # fmt: skip
_WIRE = (
    Kind("submitted", "wire", CALLS, "a gradient hook in the user's script", "ms", 0.2, 1.0),
    Kind("transfer began", "wire", CALLS, f"first of the {CAPTURE}", "ms", 1.0, 5.0),
    Kind("transfer ended", "wire", CALLS, f"last of the {CAPTURE}", "ms", 1.0, 5.0),
    Kind("transfer time of a buffer", "wire", f"{CALLS} (`service_us`)",
         "its bytes over the rate of `tc tbf`: 0.25, 0.5 and 1 Gbit/s", "%", 0.03, 0.06),
    Kind("bus bandwidth of a buffer", "wire", f"{CALLS} (`busbw_gbps`)",
         "the rate of `tc tbf`, without headers", "%", 0.03, 0.06),
    Kind("bytes of gradients", "wire", FRAME, f"{CAPTURE}, without repeated bytes", "%",
         0.005, 0.01),
    Kind("bytes of gradients, with headers", "wire", FRAME, "`tx_bytes` of the VM's NIC", "%",
         0.02, 0.03),
    Kind("communication", "wire", FRAME, f"from a gradient hook to the last of the {CAPTURE}",
         "ms", 2.0, 6.0),
    Kind("overlapped with the backward", "wire", SUMMARY,
         "the same, within the script's own clocks of the backward", "ms", 1.0, 5.0),
    Kind("exposed: waiting", "wire", FRAME, "gradient hooks of both ranks", "ms", 1.0, 5.0),
    Kind("exposed: queueing", "wire", FRAME,
         f"from the last gradient hook to the first of the {CAPTURE}", "ms", 1.0, 5.0),
    Kind("exposed: transfer", "wire", FRAME, f"first to last of the {CAPTURE}", "ms", 1.0, 5.0),
    Kind("rate of a NIC", "wire", "sidebar, Prometheus", CAPTURE, "%", 0.02, 0.05),
    Kind("offset of a VM's clock", "wire", "waterfall, arrivals, trace",
         "0: test VMs share one clock", "ms", 0.2, 1.0),
    _same("uncertainty of a VM's clock", "wire", "waterfall, arrivals, trace",
          "the true offset, 0, is within it"),
    Kind("arrival of a late rank", "wire", "`timings.arrivals()`", "gradient hooks of both ranks",
         "ms", 0.5, 2.0),
)  # fmt: skip
_TIMELINE = (
    *(
        Kind(f"{name}, Horovod", "timeline", CALLS, f"Horovod's Timeline of rank 0: {event}", "ms",
             0.05, 0.2)
        for name, event in {
            "responded": "the begin of ALLREDUCE",
            "began": "the begin of GLOO_ALLREDUCE",
            "ended": "the end of GLOO_ALLREDUCE",
            "finished": "the end of ALLREDUCE",
        }.items()
    ),
)  # fmt: skip
_DDP = (
    Kind("DDP bucket submitted", "buckets", CALLS, "a communication hook's own stamp", "ms",
         0.2, 1.0),
    Kind("DDP bucket finished", "buckets", CALLS, "a callback of the bucket's future", "ms",
         0.5, 3.0),
    _same("DDP bucket's bytes", "buckets", CALLS, "`bucket.buffer()` in a communication hook"),
)  # fmt: skip
_LINKS = (
    Kind("calibrated bus bandwidth", "links", "`%fabric calibrate`",
         "the rate of `tc tbf`, without headers", "%", 0.05, 0.08),
    Kind("calibrated time of an allreduce", "links", "`%fabric`, advice, predictions",
         "clocks in a script, sizes that were not swept", "%", 0.05, 0.15),
    Kind("matrix: bandwidth of a pair", "links", "`%fabric matrix`",
         "the rate of `tc tbf`, without headers", "%", 0.05, 0.08),
    _same("matrix: the slow VM", "links", "`%fabric matrix`", "the VM with another rate in `tc`"),
)  # fmt: skip
_PLANTED = (
    _same("straggler: rank, phase and kind", "stragglers", "`timings.stragglers()`",
          "the planted delay"),
    Kind("straggler: its size", "stragglers", "`timings.stragglers()`", "the measured sleeps", "%",
         0.05, 0.1),
    Kind("straggler: first and last iteration", "stragglers", "`timings.stragglers()`",
         "where the delay was planted", "iterations", 1.0, 2.0),
    _same("explain: the first cause", "causes", "`%explain`", "the planted cause", 0.1),
    Kind("explain: what it costs", "causes", "`%explain`", "the same training without it", "%",
         0.1, 0.3),
    Kind("a predicted iteration", "predictions", "`wb.what_if`", "the training that was predicted",
         "%", 0.03, 0.1),
)  # fmt: skip
_ARITHMETIC = (
    _exact("plan: bytes, times, iterations, memory", "arithmetic", "`workbench plan`", _PLAN),
    _same(
        "distance of two devices",
        "arithmetic",
        "`%resources`, sidebar",
        "the tree in the topology files of Azure NDv4 and AWS p4d",
    ),
    _exact("summary of an iteration's records", "arithmetic", SUMMARY, _PLAN),
    _exact("samples, epochs, time left of records", "arithmetic", SUMMARY, _PLAN),
    _exact("hours lost of records", "arithmetic", SUMMARY, _PLAN),
    _exact("GPU-hours and rank-hours of samples", "arithmetic", "`%resources use`", _PLAN),
    _exact("rate of a counter", "arithmetic", "sidebar", _PLAN),
)
KINDS = {
    kind.name: kind
    for kind in (
        *_ARITHMETIC, *_TRAINING, *_WIRE, *_TIMELINE, *_DDP, *_LINKS, *_PLANTED,
    )
}  # fmt: skip
NOT_CHECKED = {
    "GPU utilization, memory, power, clocks, temperature": "no GPU in this machine; tests compare "
    "the figures with a simulated NVML that has values of real devices",
    "NCCL's transfers, phases on a CUDA stream": "no GPU in this machine; tests use a simulated "
    "CUDA runtime with planted times",
    "NVLink and PCIe rates": "no GPU in this machine",
    "RDMA counters (bytes, congestion, errors)": "no RDMA device in this machine; tests use "
    "folders with counters of a real host",
    "what recording adds to an iteration (`%timings overhead`)": "not in this table; `make bench` "
    "measures it with another method",
    "efficiency of a scaling study": "not in this table; tests compare it with simulated fabrics",
    "idle share of a pipeline's stages": "not in this table; tests plant the time of each stage",
    "operators in a profile": "they are those of PyTorch's own profiler",
    "figures of cells with TensorFlow": "TensorFlow is not installed by `make`",
    "offset of clocks that differ": "test VMs share one clock, so only the offset 0 is known to be "
    "true; tests shift recorded clocks by known offsets",
}
