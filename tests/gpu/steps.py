"""The steps of the check, each of which `check.py` runs in a process of its own.

    python steps.py NAME RESULT OUT cpu|gpu

RESULT is a JSON file, written after each finding, so that a step that is stopped has a result too.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import faulthandler
import gzip
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cells


class Skipped(Exception):
    """A step that cannot run here, and why."""


class Step:
    """What a step has found.

    Attributes
    ----------
    gpu
        Whether there is a GPU to check.
    out
        The folder of the files that are kept.
    work
        A folder that is deleted at the end.
    """

    def __init__(self, file: Path, out: Path, gpu: bool) -> None:
        self.gpu = gpu
        self.out = out
        self.work = file.parent
        self._file = file
        self._found: dict[str, Any] = {
            "status": "unknown", "checks": [], "figures": {}, "notes": [], "environment": {},
        }  # fmt: skip
        self.write()

    def write(self, status: str = "") -> None:
        """Write the result; by default it is as bad as its worst check."""
        results = [one["ok"] for one in self._found["checks"]]
        worst = "failed" if False in results else "unknown" if None in results else "ok"
        self._found["status"] = status or worst
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(self._found, default=str), encoding="utf-8")
        fresh.replace(self._file)

    def check(self, what: str, ok: bool | None, text: object = "") -> bool:
        """Add a check: ok, failed, or None for unknown."""
        self._found["checks"].append({"what": what, "ok": ok, "text": str(text)[:1200]})
        word = {True: "ok", False: "FAILED", None: "unknown"}[ok]
        print(f"--- {word}: {what} {text}", flush=True)
        self.write()
        return ok is True

    def figure(self, name: str, value: object) -> None:
        """Add a figure."""
        self._found["figures"][name] = rounded(value)
        print(f"--- {name}: {value}", flush=True)
        self.write()

    def note(self, text: object) -> None:
        """Add a line of text."""
        self._found["notes"].append(str(text)[:2000])
        print(f"--- {text}", flush=True)
        self.write()

    def skip(self, why: str) -> None:
        """Note that the step, or its rest, cannot run here."""
        self.note(f"skipped{' the rest' if self._found['checks'] else ''}: {why}")
        if not self._found["checks"]:
            self.write("skipped")

    def environment(self, values: dict[str, str]) -> None:
        """Set variables for the steps that follow."""
        self._found["environment"] |= values
        self.write()

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Make a failed check of an error in the body, and go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - every error is a finding
            traceback.print_exc()
            self.check(what, False, f"{type(error).__name__}: {error}")


def rounded(value: Any) -> Any:
    """Round the numbers in a value to four digits."""
    if isinstance(value, dict):
        return {str(name): rounded(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def plain(error: BaseException) -> str:
    """Return the text of an error without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error))


def command(arguments: list[str], limit_s: float = 30.0) -> str:
    """Return the output of a command, or why there is none."""
    try:
        done = subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({' '.join(arguments)}: {error})"
    return done.stdout + done.stderr


@contextlib.contextmanager
def cluster(step: Step, n: int = 1, backend: str = "ddp", **options: Any) -> Iterator[Any]:
    """Start a cluster with the variables of `cells.BASE`, and stop it."""
    import workbench as wb

    began = time.monotonic()
    with wb.Cluster(n=n, backend=backend, start_timeout_s=90, **options) as started:
        print(f"--- {started.name}: {n} ranks, started in {time.monotonic() - began:.1f} s")
        started.run(cells.BASE, timeout=60)
        step.figure("start (s)", time.monotonic() - began)
        yield started


def value(started: Any, source: str, timeout: float = 60, rank: int = 0) -> Any:
    """Run a cell, and return the value of a rank."""
    return started.run(source, timeout=timeout).values[rank]


def last_rows(started: Any, before: int) -> Any:
    """Return the rows of the iterations after the first `before` rows, without the first."""
    frame = started.timings.to_frame().iloc[before:]
    return frame[frame["iteration"] > frame["iteration"].min()] if len(frame) else frame


PHASES = ("data", "copy", "forward", "backward", "exposed", "optimizer", "other")


def compare_phases(
    step: Step, name: str, own: dict[str, float], rows: Any, waits_in: str = "backward"
) -> None:
    """Compare recorded phases with our own events, and report both in microseconds.

    Exposed communication is within the backward, or within the optimizer's step: `waits_in`.
    """
    if not step.check(f"{name}: iterations are recorded", len(rows) > 0, f"{len(rows)} rows"):
        return
    recorded = {phase: rows[f"{phase}_us"] for phase in (*PHASES, "iteration")}
    medians = {phase: float(times.median()) for phase, times in recorded.items()}
    step.figure(f"{name}: recorded phases (us)", medians)
    step.figure(f"{name}: own events (us)", own)
    recorded[waits_in] = recorded[waits_in] + recorded["exposed"]
    share, least_us = (0.03, 60.0) if step.gpu else (0.5, 2000.0)
    for phase in ("copy", "forward", "backward", "optimizer", "iteration"):
        theirs, ours = float(recorded[phase].median()), own[phase]
        near = abs(theirs - ours) <= max(share * ours, least_us)
        step.check(f"{name}: {phase}", near, f"recorded {theirs:.0f} us, own {ours:.0f} us")
    rest = rows["iteration_us"] - sum(rows[f"{phase}_us"] for phase in PHASES)
    text = f"within {float(rest.abs().max()):.3f} us"
    step.check(f"{name}: phases add up", bool((rest.abs() < 5).all()), text)


def wait_for(done: Callable[[], bool], seconds: float) -> bool:
    """Wait until something holds; return whether it did within the time."""
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.1)
    return done()


def need_gpu(step: Step) -> None:
    """End a step that is about a GPU where there is none."""
    if not step.gpu:
        raise Skipped("no GPU")


# the steps


def environment(step: Step) -> None:
    """The machine, its driver, and its libraries."""
    import torch

    step.figure("python", sys.version.split()[0])
    step.figure("torch", torch.__version__)
    step.figure("CUDA of torch", torch.version.cuda)
    step.figure("cores", len(os.sched_getaffinity(0)))
    with contextlib.suppress(AttributeError, RuntimeError):
        step.figure("NCCL of torch", ".".join(map(str, torch.cuda.nccl.version())))
    whole = command(["nvidia-smi", "-q"]) + command(["nvidia-smi", "topo", "-m"])
    whole += command(["nvidia-smi", "nvlink", "-s"]) + command(["ip", "-br", "address"])
    (step.out / "nvidia-smi.txt").write_text(whole[:500_000], encoding="utf-8")
    for name in ("nvcc --version", "g++ --version", "make --version", "cmake --version"):
        said = command(name.split()).splitlines()
        known = (line for line in said if re.search(r"[0-9][.][0-9]", line))
        step.note(f"{name}: {next(known, '?')[:90]}")
    need_gpu(step)
    step.check("torch sees the GPU", torch.cuda.is_available())
    step.check("nvidia-smi answers", "Driver Version" in whole or "NVIDIA-SMI" in whole)
    step.figure("GPU", torch.cuda.get_device_name())


FORK_PROBE = """
import os, sys
import torch
{stage}
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    try:
        bad = torch.cuda._is_in_bad_fork()
        text = f"bad fork: {{bad}}"
        if {gpu}:
            text += f", sum {{float(torch.ones(8, device='cuda').sum())}}"
    except BaseException as error:
        text = f"{{type(error).__name__}}: {{error}}"
    os.write(writer, text.encode()[:2000])
    os._exit(0)
os.waitpid(pid, 0)
print("RESULT", os.read(reader, 4000).decode())
"""
FORK_STAGES = {
    "torch alone": "",
    "with torch._dynamo": "import torch._dynamo",
    "with the code of ranks": "import workbench.rank.session, workbench.rank.backends.ddp",
    "as the agent does for ddp": (
        "from workbench.agent.warm import cuda_untouched\n"
        "from workbench.rank.backends import backend_class\n"
        "with cuda_untouched():\n"
        "    backend_class('ddp').versions()\n"
        "    import workbench.rank.session, torch._dynamo"
    ),
}


def fork(step: Step) -> None:
    """Whether a process that the agent forks can use the GPU."""
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", FORK_PROBE.format(stage=stage, gpu=step.gpu)], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for name, stage in FORK_STAGES.items()
    }  # fmt: skip
    for name, process in started.items():
        output, _ = process.communicate(timeout=60)
        found = re.search(r"^RESULT (.*)", output, re.MULTILINE)
        text = found[1] if found else output[-300:]
        fine = "bad fork: False" in text and (not step.gpu or "sum 8.0" in text)
        step.check(f"a forked process can use CUDA: {name}", fine, text)


def start(step: Step) -> None:
    """Start ranks as users do, twice: those of the second start are forked from a warm process."""
    import workbench as wb

    for name in ("the first start", "the second start"):
        began = time.monotonic()
        with wb.Cluster(n=1, backend="ddp", start_timeout_s=90) as one:
            where = value(one, cells.WHERE, 60)
            step.figure(f"{name} (s)", time.monotonic() - began)
            expected = "cuda:0" if step.gpu else "cpu"
            step.check(f"{name}: device", where["device"] == expected, where)
            if step.gpu:
                total = where["sum on the device"]
                step.check(f"{name}: it computes", total == 1000.0, total)


QUERY = (
    "index,name,uuid,pci.bus_id,driver_version,memory.total,memory.used,utilization.gpu,power.draw,"
    "power.limit,enforced.power.limit,pcie.link.gen.current,pcie.link.gen.max,"
    "pcie.link.width.current,pcie.link.width.max,ecc.mode.current,mig.mode.current,compute_cap,"
    "persistence_mode,compute_mode,clocks.current.sm,clocks.max.sm,clocks.current.memory,"
    "clocks.max.memory,temperature.gpu,ecc.errors.uncorrected.volatile.total"
)


def smi(query: str = QUERY, kind: str = "gpu") -> list[dict[str, str]]:
    """Return the rows of a query of nvidia-smi."""
    output = command(["nvidia-smi", f"--query-{kind}={query}", "--format=csv,noheader,nounits"])
    rows = csv.reader(output.splitlines(), skipinitialspace=True)
    names = query.split(",")
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def unknowns(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the reason of each `Unknown` in a record."""
    from workbench.resources import Unknown

    if isinstance(value, Unknown):
        yield path, value.reason
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from unknowns(getattr(value, field.name), f"{path}.{field.name}".lstrip("."))
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from unknowns(one, f"{path}.{name}")
    elif isinstance(value, (tuple, list)):
        for number, one in enumerate(value):
            yield from unknowns(one, f"{path}[{number}]")


def note_unknowns(step: Step, value: Any, path: str) -> None:
    """List each reason once, with the fields that have it."""
    by_reason: dict[str, list[str]] = {}
    for where, why in unknowns(value, path):
        by_reason.setdefault(why, []).append(re.sub(r"\[\d+\]", "[]", where))
    for why, fields in by_reason.items():
        once = list(dict.fromkeys(fields))
        step.note(f"unknown, {why}: {', '.join(once[:12])}{' ...' if len(once) > 12 else ''}")


def resources(step: Step) -> None:
    """The snapshot against nvidia-smi."""
    import workbench as wb

    began = time.monotonic()
    snapshot = wb.take_snapshot()
    step.figure("snapshot (s)", time.monotonic() - began)
    (step.out / "snapshot.json").write_text(snapshot.to_json(), encoding="utf-8")
    again = wb.Snapshot.load(step.out / "snapshot.json")
    step.check("a snapshot is read as it was written", again == snapshot)
    print(snapshot)
    for name, probe in snapshot.probes.items():
        fine = probe.status == "ok" or (probe.status == "absent" and name != "gpus")
        fine = fine or (name == "gpus" and not step.gpu and probe.status == "absent")
        text = f"{probe.status} {probe.reason} {probe.elapsed_ms:.0f} ms"
        step.check(f"probe {name}", fine, text)
    note_unknowns(step, snapshot.gpus, "gpus")
    note_unknowns(step, snapshot.gpu_pairs, "gpu_pairs")
    note_unknowns(step, snapshot.host, "host")
    note_unknowns(step, snapshot.pcie, "pcie")
    from workbench.fabric import landscape

    for one in landscape(snapshot):
        step.note(f"landscape: {one}")
    need_gpu(step)
    theirs = smi()
    step.check("as many GPUs as nvidia-smi", len(snapshot.gpus) == len(theirs), len(theirs))
    for gpu, own in zip(snapshot.gpus, theirs, strict=False):
        _compare_gpu(step, gpu, own)
    links = re.findall(
        r"^\s*Link \d+: [\d.]+ GB/s", command(["nvidia-smi", "nvlink", "-s"]), re.MULTILINE
    )
    up = sum(len(gpu.links_up) for gpu in snapshot.gpus)
    step.check("NVLinks that are up", up == len(links), f"snapshot {up}, nvidia-smi {len(links)}")


def _compare_gpu(step: Step, gpu: Any, own: dict[str, str]) -> None:
    link, ecc, clocks = gpu.pcie_link, gpu.ecc, gpu.clocks
    on = {"Enabled": True, "Disabled": False}
    memory = (
        gpu.memory_bytes // (1 << 20) if isinstance(gpu.memory_bytes, int) else gpu.memory_bytes
    )
    pairs = {
        "name": (gpu.name, own["name"]),
        "uuid": (gpu.uuid, own["uuid"]),
        "pci_address": (gpu.pci_address, own["pci.bus_id"].lower()[-12:]),
        "memory (MiB)": (memory, own["memory.total"]),
        "driver": (gpu.driver_version, own["driver_version"]),
        "compute capability": (gpu.compute_capability, own["compute_cap"]),
        "PCIe generation, most": (getattr(link, "generation_max", link), own["pcie.link.gen.max"]),
        "PCIe width": (getattr(link, "width", link), own["pcie.link.width.current"]),
        "PCIe width, most": (getattr(link, "width_max", link), own["pcie.link.width.max"]),
        "ECC": (getattr(ecc, "enabled", ecc), on.get(own["ecc.mode.current"])),
        "MIG mode": (gpu.mig_mode, on.get(own["mig.mode.current"])),
        "persistence mode": (gpu.persistence_mode, on.get(own["persistence_mode"])),
        "compute mode": (gpu.compute_mode, own["compute_mode"].lower()),
        "greatest SM clock": (getattr(clocks, "sm_max_mhz", clocks), own["clocks.max.sm"]),
        "greatest memory clock": (
            getattr(clocks, "memory_max_mhz", clocks), own["clocks.max.memory"],
        ),
        "uncorrected errors": (
            getattr(ecc, "volatile_uncorrected", ecc), own["ecc.errors.uncorrected.volatile.total"],
        ),
    }  # fmt: skip
    from workbench.resources import Unknown

    for what, (theirs, ours) in pairs.items():
        if isinstance(theirs, Unknown) or ours is None or "N/A" in str(ours):
            both = isinstance(theirs, Unknown) and (ours is None or "N/A" in str(ours))
            step.check(f"GPU: {what}", True if both else None, f"{theirs}, nvidia-smi {ours}")
        else:
            step.check(f"GPU: {what}", str(theirs) == str(ours), f"{theirs}, nvidia-smi {ours}")
    now = getattr(link, "generation", link)
    step.note(f"PCIe generation now {now}, nvidia-smi {own['pcie.link.gen.current']}")


LOAD = """
import sys, time
import torch
device = sys.argv[1]
size = 8192 if device == "cuda" else 512
matrix = torch.randn(size, size, device=device, dtype=torch.bfloat16 if device == "cuda" else None)
ballast = torch.empty((4 << 30) if device == "cuda" else 1024, dtype=torch.uint8, device=device)
print("ready", flush=True)
until = time.time() + float(sys.argv[2])
while time.time() < until:
    for _ in range(20):
        product = matrix @ matrix
    float(product[0, 0])
"""


def sampler(step: Step) -> None:
    """The live sampler while another process multiplies matrices."""
    from workbench.resources import Unknown
    from workbench.resources.counters import Sampler

    seconds, device = (6.0, "cuda") if step.gpu else (2.0, "cpu")
    busy = subprocess.Popen(
        [sys.executable, "-c", LOAD, device, "60"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        time.sleep(1.0)
        took, samples, theirs, apps = [], [], [], []
        with Sampler() as sampled:
            until = time.monotonic() + seconds - 1.5
            while len(samples) < 3 or time.monotonic() < until:
                began = time.monotonic()
                samples.append(sampled.sample())
                took.append(time.monotonic() - began)
                if step.gpu:
                    theirs += smi()[:1]
                    apps = smi("pid,used_memory", "compute-apps") or apps
                time.sleep(0.4)
        ended = busy.poll() is None
    finally:
        busy.kill()
        busy.wait()
    step.check("the load ran all the time", ended)
    step.figure("a sample (ms)", 1e3 * statistics.median(took))
    last = samples[-1]
    step.check("CPU use is known", not isinstance(last.cpu.percent, Unknown), last.cpu.percent)
    note_unknowns(step, last.gpus, "gpus")
    print(last)
    need_gpu(step)
    for field, name, near in (
        ("utilization_percent", "utilization.gpu", 10.0),
        ("memory_used_bytes", "memory.used", 100.0),
        ("power_w", "power.draw", 60.0),
        ("power_limit_w", "enforced.power.limit", 1.0),
        ("temperature_c", "temperature.gpu", 5.0),
        ("sm_clock_mhz", "clocks.current.sm", 100.0),
    ):
        own = [getattr(one.gpus[0], field) for one in samples if one.gpus]
        known = [one for one in own if not isinstance(one, Unknown)]
        ours = []
        for row in theirs:
            with contextlib.suppress(ValueError):
                ours.append(float(row[name]))
        if not known or not ours:
            both = not known and not ours
            step.check(
                f"sampled {field}", True if both else None, f"{own[:1]}, nvidia-smi {ours[:1]}"
            )
            continue
        scale = 1 << 20 if field == "memory_used_bytes" else 1
        one, other = statistics.median(known) / scale, statistics.median(ours)
        text = f"{one:.0f}, nvidia-smi {other:.0f}"
        step.check(f"sampled {field}", abs(one - other) <= near, text)
    gpu = last.gpus[0]
    step.figure("held by", gpu.held_by)
    step.figure("idle (s) while busy", gpu.idle_s)
    listed = () if isinstance(last.processes, Unknown) else last.processes
    mine = [one for one in listed if one.pid == busy.pid]
    step.check(
        "the process is listed with its memory", bool(mine and mine[0].gpus),
        f"{mine or [one for one in listed if one.gpus]}; nvidia-smi {apps}",
    )  # fmt: skip


def doctor(step: Step) -> None:
    """The doctor's findings on this machine, and the command line."""
    import workbench as wb

    snapshot = wb.take_snapshot()
    findings = wb.diagnose(snapshot)
    for one in findings:
        step.note(f"{one.severity} {one.rule}, {one.subject}: {one.evidence} | {one.fix}")
    errors = [one.rule for one in findings if one.severity == "error"]
    step.check("no error is found on this VM", not errors, ", ".join(errors))
    for name in ("resources", "doctor"):
        done = subprocess.run(
            [sys.executable, "-m", "workbench", name], capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        print(done.stdout, done.stderr)
        fine = bool(done.stdout) and "Traceback" not in done.stderr
        step.check(f"`workbench {name}`", fine, f"exit status {done.returncode}")


def ddp(step: Step) -> None:
    """One rank with NCCL: collectives, a recorded training, summary, explanation, transports."""
    import workbench as wb

    with cluster(step) as one:
        where = value(one, cells.WHERE)
        step.figure("rank", where)
        expected = "cuda:0" if step.gpu else "cpu"
        step.check("device", where["device"] == expected, where["device"])
        with step.attempt("collectives"):
            for name, right in value(one, cells.COLLECTIVES).items():
                step.check(f"values of {name}", right)
        step.figure("transports", {rank: list(map(str, t)) for rank, t in one.transports.items()})
        before = len(one.timings)
        width, depth, batch = (2048, 8, 1024) if step.gpu else (128, 2, 64)
        with step.attempt("a recorded training"):
            source = cells.TRAIN_MLP.format(width=width, depth=depth, batch=batch, iterations=40)
            found = value(one, source, 90)
            rows = last_rows(one, before)
            step.check("rows of 40 iterations", len(rows) == 39, len(rows))
            compare_phases(step, "MLP", found["own"], rows)
            step.figure(
                "tensors and bytes", [int(rows["tensors"].iloc[-1]), int(rows["bytes"].iloc[-1])]
            )
        with step.attempt("tables"):
            collectives = one.timings.collectives()
            step.figure("libraries", sorted(set(map(str, collectives["library"]))))
            print(collectives.tail(12).to_string())
            took = collectives.get("duration_us")
            if took is not None and len(took):
                known = took.dropna()
                step.check(
                    "durations of collectives",
                    bool((known > 0).all()) if len(known) else None,
                    f"{len(known)} of {len(took)} known, median {known.median():.0f} us",
                )
            summary = one.timings.summary()
            step.figure("summary", {
                "iterations": summary.iterations, "iteration_us": summary.iteration_us,
                "communication_us": summary.communication_us, "exposed_us": summary.exposed_us,
                "overlapped_us": summary.overlapped_us, "busbw_gbps": summary.busbw_gbps,
                "unheard": summary.unheard,
            })  # fmt: skip
        with step.attempt("explain"):
            for cause in wb.explain(one):
                step.note(f"explain: {cause.name}: {cause.evidence} -> {cause.change}"[:400])
            step.note(f"verdict: {wb.verdict(one)}")
        with step.attempt("a sample of the VM"):
            one.samples()
            time.sleep(0.6)
            (sample,) = one.samples().values()
            ranks = [p for p in sample.processes if p.kind == "rank"]
            listed = bool(ranks and (ranks[0].gpus or not step.gpu))
            step.check("the rank is listed with its GPU", listed, ranks)
        with step.attempt("NCCL's log"):
            for line in value(one, cells.NCCL_LOG):
                print("NCCL|", line)
        with step.attempt("an evidence bundle"):
            import zipfile

            with zipfile.ZipFile(one.bundle(step.out / "evidence.zip")) as packed:
                manifest = packed.read("manifest.json").decode()
                step.check(
                    "NCCL's RAS is in the bundle",
                    None if "RAS" not in manifest else True,
                    [n for n in packed.namelist() if "ras" in n.lower()],
                )
                print(manifest[:4000])


def shared_gpu(step: Step) -> None:
    """Two ranks on one GPU: what NCCL's refusal looks like, and Gloo with tensors on the GPU."""
    from workbench.errors import WorkbenchError

    with cluster(step, n=2) as two:
        where = two.run(cells.WHERE, timeout=60).values
        step.figure("devices", {rank: one["device"] for rank, one in where.items()})
        if step.gpu:
            began = time.monotonic()
            try:
                two.run(cells.COLLECTIVES, timeout=30)
                step.note("NCCL accepts two ranks on one GPU")
            except WorkbenchError as error:
                text = plain(error)
                step.note(
                    f"{type(error).__name__} after {time.monotonic() - began:.1f} s: {text[:1500]}"
                )
                step.check("the error names the reason", "uplicate GPU" in text, text[-500:])
            step.check("the cluster goes on", two.state == "ready", f"{two.state} {two.message}")
        with step.attempt("a process group with Gloo"):
            two.run("dist.destroy_process_group()\ndist.init_process_group('gloo')", timeout=60)
        with step.attempt("Gloo with tensors of the device"):
            for name, right in value(two, cells.COLLECTIVES).items():
                step.check(f"Gloo: values of {name}", right)
        with step.attempt("a training with Gloo"):
            width, depth, batch = (1024, 6, 256) if step.gpu else (64, 2, 32)
            before = len(two.timings)
            source = cells.TRAIN_MLP.format(width=width, depth=depth, batch=batch, iterations=30)
            losses = {rank: one["loss"] for rank, one in two.run(source, timeout=90).values.items()}
            step.figure("losses", losses)
            rows = last_rows(two, before)
            step.check("rows of both ranks", len(rows) == 58, len(rows))
            step.figure("medians (us)", {
                name: float(rows[name].median()) for name in (
                    "iteration_us", "forward_us", "backward_us", "exposed_us", "communication_us",
                    "wait_us", "overlap")
            })  # fmt: skip
            known = rows["exposed_us"].notna().all() and (rows["communication_us"] > 0).all()
            step.check("communication is recorded", bool(known))
        with step.attempt("calibrate"):
            fabric = two.calibrate(seconds=4, timeout=60, show_progress=False)
            step.figure("calibration", str(fabric)[:400])
            step.figure("copies (GB/s)", fabric.devices)


def neutrality(step: Step) -> None:
    """The same training with and without recording: equal bit by bit."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    with cluster(step) as one:
        found = {}
        for number, recording in enumerate((True, False, True, False)):
            one.recording = recording
            before = len(one.timings)
            found[number, recording] = value(one, cells.NEUTRALITY, 60)
            rows = len(one.timings) - before
            step.check(
                f"run {number + 1}: {'recorded' if recording else 'not recorded'}",
                (rows > 0) == recording,
                f"{rows} rows",
            )
        first = found[0, True]
        for kind in first:
            results = {result[kind] for result in map(_as_plain, found.values())}
            step.check(f"parameters are equal: {kind}", len(results) == 1, results)
        waits = {}
        for recording in (True, False):
            one.recording = recording
            waits[recording] = value(one, cells.SYNCHRONIZATIONS, 60)
        text = f"recorded {waits[True]}, not recorded {waits[False]}"
        more = {name for name, count in waits[True].items() if count > waits[False].get(name, 0)}
        step.check("recording adds no synchronization", not more, text)


def _as_plain(result: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {kind: tuple(one) for kind, one in result.items()}


def overhead(step: Step) -> None:
    """What recording adds to an iteration: blocks with and without it, in turn."""
    kinds = {"small MLP": (300, 10), "convnet": (10, 6), "convnet with AMP": (10, 6)}
    if not step.gpu:
        kinds = {"small MLP": (20, 3), "convnet": (5, 3)}
    with cluster(step) as one:
        one.run(cells.BLOCKS, timeout=60)
        for kind, (iterations, pairs) in kinds.items():
            with step.attempt(kind):
                source = cells.BLOCK.format(kind=kind, iterations=iterations)
                value(one, source, 90)  # warm up
                times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
                for _ in range(pairs):
                    for recording in random.sample((True, False), 2):
                        one.recording = recording
                        times[recording].append(value(one, source, 60))
                _report_overhead(step, kind, times)
        one.recording = True
        with step.attempt("cluster.measure_overhead"):
            kind, iterations = ("small MLP", 100) if step.gpu else ("small MLP", 10)
            source = cells.BLOCK.format(kind=kind, iterations=iterations)
            value(one, source)
            step.note(f"measure_overhead: {one.measure_overhead(source, pairs=4, timeout=40)}")


def _report_overhead(step: Step, kind: str, pairs: dict[bool, list[tuple[float, float]]]) -> None:
    times = {recorded: [wall for wall, _ in blocks] for recorded, blocks in pairs.items()}
    on, off = statistics.median(times[True]), statistics.median(times[False])
    cpu = {
        recorded: statistics.median(cpu for _, cpu in blocks) for recorded, blocks in pairs.items()
    }
    differences = [a - b for a, b in zip(times[True], times[False], strict=True)]
    resampled = sorted(
        statistics.mean(random.choices(differences, k=len(differences))) for _ in range(2000)
    )
    step.figure(f"{kind}: overhead", {
        "recorded (us)": on, "not recorded (us)": off, "added (us)": on - off,
        "added (%)": 100 * (on / off - 1), "95 % interval (us)": [resampled[50], resampled[-51]],
        "CPU of the training thread (us)": cpu[True] - cpu[False],
        "blocks": {"recorded": times[True], "not recorded": times[False]},
    })  # fmt: skip
    if step.gpu and kind == "convnet with AMP":
        added = 100 * statistics.median(differences) / off
        step.check("recording adds at most 0.4 % (ResNet-50, AMP)", added <= 0.4, f"{added:.2f} %")
        text = f"{cpu[True] - cpu[False]:.0f} us"
        step.check("and 60 us of CPU to the training thread", cpu[True] - cpu[False] <= 60, text)


def phases(step: Step) -> None:
    """The phases of a convolutional network, without any synchronization in its loop."""
    batch, size, iterations = (64, 224, 12) if step.gpu else (8, 32, 8)
    with cluster(step) as one:
        for amp in (False, True) if step.gpu else (False,):
            name = f"convnet{' with AMP' if amp else ''}"
            with step.attempt(name):
                before = len(one.timings)
                source = cells.TRAIN_CONVNET.format(
                    batch=batch, size=size, iterations=iterations, amp=amp
                )
                found = value(one, source, 90)
                compare_phases(step, name, found["own"], last_rows(one, before))


def copies(step: Step) -> None:
    """What `calibrate` measures on a single rank, against our own events."""
    from workbench.errors import UsageError

    with cluster(step) as one:
        try:
            fabric = one.calibrate(seconds=2, show_progress=False)
        except UsageError as error:
            step.check("one rank without a GPU is refused", not step.gpu, error)
            return
        (theirs,), (spreads,) = fabric.devices.values(), fabric.device_spreads.values()
        step.figure("copies (GB/s)", theirs)
        step.figure("their spreads", spreads)
        for name, rate in value(one, cells.OWN_COPIES).items():
            text = f"{theirs.get(name, float('nan')):.1f} GB/s, own {rate:.1f} GB/s"
            if name == "host memory":
                step.note(f"{name}: {text}")
            else:
                step.check(name, abs(theirs[name] / rate - 1) < 0.05, text)


def collectives(step: Step) -> None:
    """Begin and end of collectives, and exposed communication, against PyTorch's profiler."""
    import torch

    if step.gpu and torch.cuda.device_count() < 2:
        step.check("collectives against NCCL's kernels", None, "one GPU: NCCL starts no kernels")
        return
    with cluster(step, n=2) as two:
        for name, right in value(two, cells.COLLECTIVES).items():
            step.check(f"two ranks: values of {name}", right)
        width, depth, batch = (2048, 8, 512) if step.gpu else (64, 2, 32)
        source = cells.TRAIN_MLP.format(width=width, depth=depth, batch=batch, iterations=40)
        future = two.profile(iterations=8)
        two.run(source, timeout=90)
        events = trace_of(future.result(timeout=60))
        ours = [one for one in events if one.get("cat") == "collective"]
        theirs = [
            one for one in events
            if one["ph"] == "X" and re.search(r"ncclDevKernel|^gloo:all_reduce", one["name"])
        ]  # fmt: skip
        if not step.check("both are in the trace", bool(ours and theirs), f"{len(theirs)} theirs"):
            return
        ends = []
        for rank in (0, 1):
            known = [one["ts"] + one["dur"] for one in theirs if one["pid"] == rank]
            own = [one["ts"] + one["dur"] for one in ours if one["pid"] == rank]
            ends += [min((at - end for end in known), key=abs) for at in own if known]
        off_us = statistics.median(map(abs, ends))
        bound_us = 20.0 if step.gpu else 3000.0
        step.check("end of collectives", off_us <= bound_us, f"median {off_us:.1f} us off")
        if step.gpu:
            rows = two.timings.to_frame()
            rows = rows[rows["iteration"].between(*iterations_of(events))]
            kernels = sum(one["dur"] for one in theirs) / max(1, len(rows))
            exposed, known = (
                float(rows["exposed_us"].mean()),
                float(rows["communication_us"].mean()),
            )
            step.figure(
                "communication (us)", {"kernels": kernels, "ours": known, "exposed": exposed}
            )
            step.check("exposed communication", exposed <= kernels * 1.03 + 20, f"{exposed:.0f} us")


def trace_of(profile: Any) -> list[dict[str, Any]]:
    """Return the events of a profile's trace."""
    packed = gzip.open if str(profile.path).endswith(".gz") else open
    with packed(profile.path, "rt", encoding="utf-8") as opened:
        trace = json.load(opened)
    events: list[dict[str, Any]] = trace["traceEvents"] if isinstance(trace, dict) else trace
    return events


def iterations_of(events: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the first and the last iteration of a trace."""
    numbers = [int(one["name"].split()[1]) for one in events if one.get("cat") == "iteration"]
    return min(numbers), max(numbers)


def out_of_memory(step: Step) -> None:
    """A cell that allocates too much: its error, and the memory afterwards."""
    from workbench.errors import RanksFailed

    need_gpu(step)
    with cluster(step) as one:
        before = value(one, cells.MEMORY)
        try:
            one.run(cells.OUT_OF_MEMORY, timeout=60)
            step.check("the cell fails", False)
        except RanksFailed as error:
            text = plain(error)
            step.check("the error is that of CUDA", "out of memory" in text, text[-700:])
        step.check("the cluster is ready", one.state == "ready", f"{one.state} {one.message}")
        after = value(one, "memory()")
        step.figure("memory before and after", {"before": before, "after": after})
        held = after["allocated"] - before["allocated"]
        step.check("tensors are freed at once", held < 1 << 30, f"{held / 2**30:.1f} GB are held")
        later = value(one, "gc.collect(); torch.cuda.empty_cache(); memory()")
        held = later["allocated"] - before["allocated"]
        step.check("and after a collection", held < 1 << 30, f"{held / 2**30:.1f} GB are held")
        value(one, "torch.cuda.set_per_process_memory_fraction(1.0)")
        step.check(
            "the rank computes", value(one, "float(torch.ones(8, device=device).sum())") == 8
        )


def recovery(step: Step) -> None:
    """A cell that is stopped, a broken CUDA context, and a rank that is killed."""
    from workbench.errors import CellTimeout, WorkbenchError

    works = "float(torch.ones(8, device=device).sum())"
    with cluster(step) as one:
        for what, source in (("computing", cells.ENDLESS), ("long kernel", cells.LONG_KERNEL)):
            with step.attempt(f"a cell that is stopped: {what}"):
                began = time.monotonic()
                try:
                    one.run(source, timeout=3)
                except CellTimeout as error:
                    took = time.monotonic() - began
                    text = f"after {took:.1f} s: {plain(error)[:200]}"
                    step.check(f"a cell is stopped: {what}", took < 8, text)
                ready = wait_for(lambda: one.state == "ready", 12)
                step.check(
                    f"the rank computes afterwards: {what}", ready and value(one, works) == 8
                )
        if step.gpu:
            with step.attempt("a broken CUDA context"):
                for source in (cells.ASSERTION, works):
                    try:
                        one.run(source, timeout=30)
                        step.check("an error is raised", False, source[-60:])
                    except WorkbenchError as error:
                        step.note(f"after an assertion on the GPU: {plain(error)[-700:]}")
                step.note(f"{one.state} {one.message}")
                one.restart(ranks="0")
                one.run(cells.BASE, timeout=60)
                step.check("a restarted rank computes", value(one, works) == 8)
    with cluster(step, n=2) as two, step.attempt("a rank that is killed"):
        two.run("kept = torch.full((8,), float(rank), device=device)", timeout=60)
        before = smi("memory.used")[0]["memory.used"] if step.gpu else "0"
        source = "held = torch.ones(1 << 28, device=device); finish()\n" if step.gpu else ""
        try:
            two.run(source + "os.kill(os.getpid(), 9)", ranks="1", timeout=30)
        except WorkbenchError as error:
            step.note(f"killed: {plain(error)[:300]}")
        two.restart()
        two.run(cells.BASE, ranks="1", timeout=60)
        kept = two.run("float(kept.sum())", ranks="0", timeout=60).values[0]
        step.check("the other rank has its variables", kept == 0, kept)
        step.check("the replacement computes", value(two, works, rank=1) == 8)
        after = smi("memory.used")[0]["memory.used"] if step.gpu else "0"
        grown = float(after) - float(before)
        step.check("the memory of the killed rank is free", grown < 300, f"{before}, {after} MiB")


def batch(step: Step) -> None:
    """The largest batch, and the memory of a model."""
    with cluster(step) as one:
        found = value(one, cells.LARGEST_BATCH, 60)
        step.figure("largest batch", found)
        if not step.gpu:
            step.check("largest batch", found["largest"] == 64, found["largest"])
            return
        step.check("it is limited by memory", found["largest"] < 1 << 20, found["largest"])
        step.check("it fits again", found["the largest"] == "fits")
        more = found["a twentieth more"]
        step.check("a twentieth more does not fit", more == "does not fit", more)
        predicted, measured = found["activation bytes"], found["activations measured"]
        step.check(
            "activation bytes per sample",
            abs(predicted / measured - 1) < 0.15,
            f"predicted {predicted:.0f}, measured {measured:.0f}",
        )


def profile(step: Step) -> None:
    """PyTorch's profiler during a training, merged with our phases."""
    with cluster(step) as one:
        future = one.profile(1.0)
        count = value(one, cells.TRAIN_FOR.format(seconds=6 if step.gpu else 3), 60)
        found = future.result(timeout=60)
        step.note(repr(found))
        step.check("it lasts a second", found.seconds > 0.9, f"{found.seconds:.2f} s")
        step.figure(
            "iterations", {"all": count, "profiled": [found.first_iteration, found.last_iteration]}
        )
        events = trace_of(found)
        kinds = Counter(str(event.get("cat", event.get("ph"))) for event in events)
        step.figure("events by kind", dict(kinds))
        step.check("operators are in the trace", kinds["cpu_op"] > 0)
        step.check("our phases are in the trace", kinds["phase"] > 0)
        if step.gpu:
            kernels = [event for event in events if event.get("cat") == "kernel"]
            step.check("CUDA kernels are in the trace", len(kernels) > 0, len(kernels))
            ours = [event for event in events if event.get("cat") == "iteration"]
            if kernels and ours:
                first = min(event["ts"] for event in ours)
                last = max(event["ts"] + event.get("dur", 0) for event in ours)
                inside = sum(first <= event["ts"] <= last for event in kernels)
                text = f"{inside} of {len(kernels)}"
                step.check("kernels are within iterations", inside > 0.9 * len(kernels), text)
        target = step.out / "profile.json.gz"
        if Path(found.path).stat().st_size < 12 << 20:
            target.write_bytes(Path(found.path).read_bytes())


def trainers(step: Step) -> None:
    """Lightning, Accelerate, torch.compile and a CUDA graph in recorded cells."""
    with cluster(step) as one:
        for name, source, expected in (
            ("CUDA graph", cells.GRAPHED, 0),
            ("accelerate", cells.ACCELERATE, 15),
            ("lightning", cells.LIGHTNING, 15),
            ("lightning, not interactive", cells.NOT_INTERACTIVE + cells.LIGHTNING, 15),
            ("torch.compile", cells.COMPILED, 10),
        ):
            if name in {"CUDA graph", "torch.compile"} and not step.gpu:
                continue
            if name[0] in "al" and find_spec(name.partition(",")[0]) is None:
                step.note(f"{name} is not installed")
                continue
            with step.attempt(name):
                before = len(one.timings)
                found = value(one, f"{source}", 60)
                rows = len(one.timings) - before
                step.check(
                    f"{name}: iterations are recorded", rows >= expected, f"{rows} rows, {found}"
                )


def horovod(step: Step) -> None:
    """One rank of the Horovod that was built, with its tap."""
    import workbench as wb

    report = command([sys.executable, "-m", "workbench", "build-horovod", "--check"], 60).strip()
    if not step.gpu and "not installed" in report:
        raise Skipped("Horovod is not installed")
    if not step.check("Horovod is installed and fits", "It fits." in report, report):
        return
    with cluster(step, backend="horovod") as one:
        where = value(one, "{'device': str(device), 'size': hvd.size()}")
        step.figure("rank", where)
        before = len(one.timings)
        found = value(one, cells.HOROVOD, 90)
        step.check("values of allreduce", found["right"])
        step.check("Horovod has NCCL", found["NCCL"] or not step.gpu)
        compare_phases(step, "Horovod", found["own"], last_rows(one, before), "optimizer")
        collectives = one.timings.collectives()
        step.figure("libraries", sorted(set(map(str, collectives["library"]))))
        spans = [name for name in collectives if name.endswith("_us")]
        step.figure("spans (us, medians)", {n: float(collectives[n].median()) for n in spans})
        for name in ("queued_us", "transfer_us", "duration_us"):
            if name in spans:
                known = collectives[name].dropna()
                fine = bool((known >= 0).all() and (known < 1e6).all()) if len(known) else None
                step.check(
                    f"{name} is plausible", fine, f"{len(known)} of {len(collectives)} known"
                )
        step.figure("transports", {rank: list(map(str, t)) for rank, t in one.transports.items()})
        for cause in wb.explain(one):
            step.note(f"explain: {cause.name}: {cause.evidence}"[:300])


STEPS: dict[str, Callable[[Step], None]] = {
    one.__name__: one
    for one in (
        environment, fork, start, resources, ddp, sampler, doctor, neutrality, overhead, phases,
        copies, collectives, shared_gpu, out_of_memory, recovery, batch, profile, trainers, horovod,
    )
}  # fmt: skip


def main() -> int:
    """Run one step."""
    name, file, out, kind = sys.argv[1:]
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    step = Step(Path(file), Path(out), kind == "gpu")
    try:
        STEPS[name](step)
    except Skipped as why:
        step.skip(str(why))
    except Exception as error:  # noqa: BLE001 - every error is a finding
        traceback.print_exc()
        step.check(f"step {name}", False, f"{type(error).__name__}: {error}")
    else:
        step.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
