"""Four VMs ready, one rank each, against stock ipyparallel and plain ``horovodrun``.

Each begins before its imports and ends when a collective over all ranks was
answered. All are started in one more test VM, so that the machine they start
from is a host in the ranks' network with an ``eth0`` of its own, as
``horovodrun`` must have it. What was done for the peers, and no more:

- Stock ipyparallel copies its connection files with ``scp``, whose present
  protocol is an sftp server that the test VMs' sshd does not offer: it was
  given ``scp -O``, the protocol before, by its own setting ``scp_args``. Its
  pause of 1 s between controller and engines is its default, and is kept. Each
  VM has a profile folder of its own, since all see the same files. Then torch,
  Horovod and ``hvd.init()``, as in `start`.
- ``horovodrun`` has no option for an ssh configuration: an ``ssh`` before the
  real one on its PATH adds ``-F``. It was given its interface, so it does not
  search one, and ``--disable-cache`` keeps it from remembering this network.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.bounds import NotMeasured, at_most, sized
from tests.bench.stats import spread
from tests.bench.stock import form_ring
from workbench.testbed import vms, why_not

LIMIT = 0.35
MADE_S = 5
"""Most seconds that three test VMs take to come and go."""
VMS = sized(4, 2)
TURNS = sized(3, 1)
SETTLE_S = sized(5, 0)
"""The processes of the one before are still ending for a while."""
PATIENCE_S = 120

ANSWERED = "answered by rank"
SCRIPT = f"""
import torch, horovod.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(1))
print("{ANSWERED}", hvd.rank(), flush=True)
"""


def ours(config, address, names):
    """Seconds until a collective over all VMs was answered; so for each below."""
    began = time.perf_counter()
    import workbench as wb

    cluster = wb.Cluster(hosts=",".join(f"{name}:1" for name in names), ssh_config=config).start()
    took = time.perf_counter() - began
    cluster.stop()
    return took


def stock(config, address, names):
    """Stock ipyparallel: its ssh launcher, then ``hvd.init()`` on the engines."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = folder
        began = time.perf_counter()
        import ipyparallel as ipp
        from traitlets.config import Config

        settings = Config()
        launcher = settings.SSHEngineSetLauncher
        launcher.engines = {n: {"n": 1, "remote_profile_dir": f"{folder}/{n}"} for n in names}
        launcher.ssh_args = ["-F", config]
        launcher.scp_args = ["-O", "-F", config]
        launcher.remote_python = sys.executable
        cluster = ipp.Cluster(
            n=len(names), engines="ssh", controller_ip=address, log_level=40, config=settings
        )
        client = cluster.start_and_connect_sync()
        form_ring(client, names, "eth0", address)
        took = time.perf_counter() - began
        cluster.stop_cluster_sync()
    return took


def horovodrun(config, address, names):
    """``horovodrun`` with a script that does no more than one allreduce."""
    with tempfile.TemporaryDirectory() as folder:
        wrapper = Path(folder, "ssh")
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
        wrapper.chmod(0o755)
        command = [
            *(sys.executable, "-m", "horovod.runner.launch", "-np", str(len(names))),
            *("-H", ",".join(f"{name}:1" for name in names), "--network-interfaces", "eth0"),
            *("--gloo", "--disable-cache", sys.executable, "-c", SCRIPT),
        ]
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        began = time.perf_counter()
        run = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        seen, answers = [], 0
        for line in run.stdout:
            seen.append(line)
            answers += ANSWERED in line
            if answers == len(names):
                took = time.perf_counter() - began
                run.communicate()
                return took
    raise RuntimeError("".join(seen))


STARTERS = (ours, stock, horovodrun)


def measure():
    """Take turns, each start in a process and on VMs of its own, and report the ratios."""
    if (reason := why_not()) is not None:
        raise NotMeasured(reason)
    began = time.perf_counter()
    with vms(3, gbps=1.0):
        pass
    yield at_most("test VMs", time.perf_counter() - began, MADE_S, "s")
    turns = [{starter.__name__: _on_new_vms(starter.__name__) for starter in STARTERS}
             for _ in range(TURNS)]  # fmt: skip
    for starter in STARTERS:
        yield from _report(starter.__name__, turns)


def _report(name, turns):
    """Print a starter's seconds, and the ratio of ours to them in the turns where both started.

    Ours must start in all turns, and stock ipyparallel, against which the bound is, in one.
    """
    needed = {"ours": len(turns), "stock": 1}.get(name, 0)
    worked = [turn for turn in turns if isinstance(turn[name], float)]
    for why in {turn[name] for turn in turns if turn not in worked}:
        text = f"{name} failed in {len(turns) - len(worked)} of {len(turns)} turns, such as: {why}"
        if len(worked) < needed:
            raise RuntimeError(text)
        print(text)
    if worked:
        print(f"{name:18} {spread([turn[name] for turn in worked])} s")
    both = [turn for turn in worked if isinstance(turn["ours"], float)]
    if name != "ours" and both:
        ratios = [turn["ours"] / turn[name] for turn in both]
        if name == "stock":
            yield at_most("ours to stock", ratios, LIMIT)
        else:
            print(f"ours to {name:10} {spread(ratios)}")


def _on_new_vms(name):
    """Return how many seconds a start took, or why it failed."""
    code = (
        "import json, sys; from tests.bench import vms\n"
        f"print(json.dumps(vms.{name}(sys.argv[1], sys.argv[2], sys.argv[3:])))"
    )
    time.sleep(SETTLE_S)
    with vms(VMS + 1) as machines:
        *names, head = machines.names
        arguments = [str(machines.ssh_config), machines.address(head), *names]
        try:
            done = machines.run(
                head, [sys.executable, "-c", code, *arguments], timeout_s=PATIENCE_S
            )
        except subprocess.TimeoutExpired:
            return f"it was not ready after {PATIENCE_S} s"
        except subprocess.CalledProcessError as error:
            return error.stderr.strip().rpartition("\n")[2]
    return json.loads(done.stdout.splitlines()[-1])
