"""Check Gradient Workbench on a machine with one NVIDIA GPU.

    python check.py [--cpu [--build]] [--out FOLDER] [--limit SECONDS] [--only A,B] [--skip A,B]

Runs the steps of `steps.py` one after the other, each in a process group of its own with a limit
of its own, and writes report.json, report.txt and log.txt after each step. The most valuable ones
are first. `--cpu` runs the same on a machine without a GPU, to test this program. Horovod is built
while the steps run whose times do not matter. The exit status is 1 if a step has failed, and 0 on a
machine without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import IO, Any

KIT = Path(__file__).resolve().parent
LIMITS = {
    "environment": 40, "fork": 60, "start": 190, "resources": 30, "ddp": 75, "sampler": 30,
    "doctor": 40, "neutrality": 75, "overhead": 80, "phases": 50, "copies": 40, "collectives": 50,
    "shared_gpu": 95, "out_of_memory": 45, "recovery": 90, "batch": 45, "profile": 50,
    "trainers": 100, "horovod": 280,
}  # fmt: skip
"""Seconds of each step, in their order."""
BUILD_BEFORE = "shared_gpu"
"""With this step the build of Horovod begins: the later ones do not compare times."""
BUILD_S = 240
_STACKS_S = 1.5
_LEAST_S = 8
_REPORT_LINES = 150
_REPORT_CHARACTERS = 10_500


def descendants(pid: int) -> list[Any]:
    """Return the processes that a process has started, directly or not."""
    import psutil

    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process, its group, and what it has started."""
    import psutil

    others = descendants(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for other in others:
        with contextlib.suppress(psutil.NoSuchProcess):
            other.kill()
    process.wait()
    psutil.wait_procs(others, timeout=3)


class Check:
    """The run of all steps."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.out = Path(given.out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self._work = Path(tempfile.mkdtemp(prefix="gpu-kit-"))
        self._log: IO[str] = (self.out / "log.txt").open("a", encoding="utf-8")
        self._kind = "cpu" if given.cpu else "gpu"
        self._began = time.monotonic()
        self._limit_s = given.limit
        self._environment = os.environ | {
            "GRADIENT_WORKBENCH_RUNS": str(self._work / "runs"),
            "GRADIENT_WORKBENCH_USE": "off",
            "PYTHONUNBUFFERED": "1",
        }
        self._build: subprocess.Popen[Any] | None = None
        self._build_began = 0.0
        self.results: dict[str, dict[str, Any]] = {}

    @property
    def left_s(self) -> float:
        """How many seconds are left for all."""
        return self._limit_s - (time.monotonic() - self._began)

    def run(self, name: str) -> None:
        """Run a step, and add its result."""
        if name == "horovod":
            self._await_build()
        limit = min(LIMITS[name], self.left_s - 4)
        if limit < _LEAST_S:
            why = {"what": "the step runs", "ok": False, "text": "no time was left"}
            self.results[name] = {
                "status": "failed",
                "checks": [why],
                "figures": {},
                "notes": [],
                "seconds": 0,
            }
            return
        file = self._work / f"{name}.json"
        file.unlink(missing_ok=True)
        self._log.write(f"\n===== {name}, at most {limit:.0f} s =====\n")
        self._log.flush()
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, str(KIT / "steps.py"), name, str(file), str(self.out), self._kind],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
            env=self._environment, start_new_session=True,
        )  # fmt: skip
        stopped = ""
        try:
            process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            stopped = f"stopped after {limit:.0f} s: see the stacks in log.txt"
            os.kill(process.pid, signal.SIGUSR1)  # faulthandler writes its stacks
            time.sleep(_STACKS_S)
        end(process)
        result = self._read(file)
        if stopped or process.returncode not in (0, None):
            why = stopped or f"ended with status {process.returncode}"
            result["checks"].append({"what": "the step ends", "ok": False, "text": why})
            result["status"] = "failed"
        result["seconds"] = round(time.monotonic() - began, 1)
        self._environment |= result.get("environment", {})
        self.results[name] = result

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = {"status": "failed", "checks": [], "figures": {}, "notes": ["no result"]}
        return found

    def start_build(self) -> None:
        """Build Horovod in the background."""
        wanted = ["--with", "nccl"] if self._kind == "gpu" else []
        jobs = max(1, len(os.sched_getaffinity(0)) - 3)
        sources = KIT / "build"
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(sources)} if sources.is_dir() else {}
        offline |= {"PIP_BREAK_SYSTEM_PACKAGES": "1", "XDG_CACHE_HOME": str(self._work / "cache")}
        site = os.environ.get("GPU_KIT_SITE")
        if site and not os.access(sysconfig.get_path("purelib"), os.W_OK):
            offline["PIP_TARGET"] = site
        with (self.out / "horovod-build.txt").open("w") as log:
            self._build = subprocess.Popen(
                [sys.executable, "-m", "workbench", "build-horovod", "--jobs", str(jobs), *wanted],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=self._environment | offline, start_new_session=True,
            )  # fmt: skip
        self._build_began = time.monotonic()

    def _await_build(self) -> None:
        """Wait for the build of Horovod, and report it as a step."""
        if self._build is None:
            return
        limit = BUILD_S - (time.monotonic() - self._build_began)
        stopped = ""
        try:
            self._build.wait(timeout=max(1.0, min(limit, self.left_s - 30)))
        except subprocess.TimeoutExpired:
            stopped = "stopped: it took too long"
        took = time.monotonic() - self._build_began
        end(self._build)
        fine = not stopped and self._build.returncode == 0
        with (self.out / "horovod-build.txt").open("a+", errors="replace") as log:
            log.seek(0)
            said = log.read()[-2500:]
            for file in sorted((self._work / "cache").rglob("logs/*.log")):
                log.write(
                    f"\n===== {file.name} =====\n{file.read_text(errors='replace')[-400_000:]}"
                )
        text = stopped or f"exit status {self._build.returncode}: {said[-900:]}"
        self.results["horovod_build"] = {
            "status": "ok" if fine else "failed", "seconds": round(took, 1), "figures": {},
            "checks": [{"what": "Horovod is built", "ok": fine, "text": text}], "notes": [],
        }  # fmt: skip

    def close(self) -> None:
        """End what still runs."""
        if self._build is not None:
            end(self._build)
        self._log.close()
        shutil.rmtree(self._work, ignore_errors=True)

    def write(self) -> str:
        """Write both reports, and return the text."""
        whole = {
            "kind": self._kind, "seconds": round(time.monotonic() - self._began, 1),
            "steps": self.results,
        }  # fmt: skip
        (self.out / "report.json").write_text(json.dumps(whole, indent=1), encoding="utf-8")
        text = "\n".join(report_lines(self.results)) + "\n"
        (self.out / "report.txt").write_text(text, encoding="utf-8")
        return text


def report_lines(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line for each step, then what failed, what is unknown, the figures and notes."""
    lines = []
    for name, result in results.items():
        checks = result.get("checks", [])
        passed = sum(one["ok"] is True for one in checks)
        count = f"{passed} of {len(checks)} checks" if checks else ""
        why = result["notes"][-1] if result["status"] == "skipped" and result["notes"] else ""
        lines.append(
            f"{name:14} {result['status']:8} {result.get('seconds', 0):6.1f} s  {count}{why[:70]}"
        )
    details: list[tuple[int, str]] = []
    for name, result in results.items():
        for one in result.get("checks", []):
            if one["ok"] is not True:
                word = "FAILED" if one["ok"] is False else "unknown"
                details.append(
                    (0 if one["ok"] is False else 1, f"{word} {name}: {one['what']}: {one['text']}")
                )
        for figure, value in result.get("figures", {}).items():
            details.append((2, f"{name}: {figure}: {json.dumps(value, default=str)}"))
        if result["status"] != "skipped":
            details += [(3, f"{name}: {note}") for note in result.get("notes", [])]
    widths = {0: 700, 1: 300, 2: 260, 3: 220}
    left = _REPORT_CHARACTERS - sum(len(line) + 1 for line in lines)
    lines.append("")
    for order, text in sorted(details, key=lambda one: one[0]):
        line = " ".join(text.split())
        line = line if len(line) <= widths[order] else f"{line[: widths[order]]}..."
        left -= len(line) + 1
        if left < 0 or len(lines) >= _REPORT_LINES - 1:
            lines.append("(more is in report.json)")
            break
        lines.append(line)
    return lines


def has_gpu() -> bool:
    """Return whether the driver lists a GPU."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "GPU " in done.stdout


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="without a GPU, to test this program")
    parser.add_argument("--build", action="store_true", help="build Horovod also with --cpu")
    parser.add_argument("--out", default=os.environ.get("OUT", "gpu-report"))
    parser.add_argument("--limit", type=float, default=470.0, help="seconds for everything")
    parser.add_argument("--only", default="", help="names of steps, separated by commas")
    parser.add_argument("--skip", default="", help="names of steps to leave out")
    return parser.parse_args()


def main() -> int:
    """Run all steps."""
    given = arguments()
    only, skip = filter(None, given.only.split(",")), set(given.skip.split(","))
    names = [name for name in list(only) or LIMITS if name not in skip]
    if unknown := set(names) - set(LIMITS):
        print(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(LIMITS)}")
        return 2
    if not given.cpu and not has_gpu():
        print("This machine has no NVIDIA GPU (nvidia-smi lists none): nothing was checked.")
        return 0
    check = Check(given)
    first_without_times = [*LIMITS].index(BUILD_BEFORE)
    builds, building = "horovod" in names and (given.build or not given.cpu), False
    try:
        for name in names:
            if builds and not building and [*LIMITS].index(name) >= first_without_times:
                building = True
                check.start_build()
            check.run(name)
            check.write()
            result = check.results[name]
            print(f"{name:14} {result['status']:8} {result['seconds']:6.1f} s", flush=True)
    finally:
        check.close()
        print("\n" + check.write(), flush=True)
    return 1 if any(one["status"] == "failed" for one in check.results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
