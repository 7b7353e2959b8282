"""Four VMs ready, one rank each, against stock ipyparallel and plain ``horovodrun``.

Each begins before its imports and ends when a collective over all ranks was
answered. All are started in one more test VM, so that the machine they start
from is a host in the ranks' network with an ``eth0`` of its own, as
``horovodrun`` must have it. What was done for the peers, and no more:

- Stock ipyparallel copies its connection files with ``scp``, whose present
  protocol is an sftp server that the test VMs' sshd does not offer: it was
  given ``scp -O``, the protocol before, by its own setting ``scp_args``. Its
  pause of 1 s between controller and engines is its default, and stands. Each
  VM has a profile folder of its own, since all see the same files. Then torch,
  Horovod and ``hvd.init()``, as in `start`.
- ``horovodrun`` has no option for an ssh configuration: an ``ssh`` before the
  real one on its PATH adds ``-F``. It was told its interface, so it does not
  look for one, and ``--disable-cache`` keeps it from remembering this network.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.stats import spread
from workbench.vms import vms, why_not

LIMIT = 0.35
VMS = 4
TURNS = 3
SETTLE_S = 5
"""The processes of the one before are still ending for a while."""
PATIENCE_S = 180

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
        _init(client, address, names)
        took = time.perf_counter() - began
        cluster.stop_cluster_sync()
    return took


def _init(client, address, names):
    view = client[:]
    view.block = True
    view.execute("import torch")
    view.execute("import horovod.torch as hvd")
    from workbench.cluster import ring

    with ring.Rendezvous(ring.assign(names), address) as rendezvous:
        view.execute("import os")
        pending = []
        for rank, engine in enumerate(client.ids):
            environment = rendezvous.environment(rank, "eth0")
            source = f"os.environ.update({environment!r})\nhvd.init()"
            pending.append(client[engine].execute(source, block=False))
        for answer in pending:
            answer.get()
    view.execute("hvd.allreduce(torch.ones(1))")


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
    """Take turns, each start in a process of its own, and report the ratios turn by turn."""
    if (reason := why_not()) is not None:
        print(f"not measured: {reason}")
        return
    taken = {starter.__name__: [] for starter in STARTERS}
    with vms(VMS + 1) as machines:
        for _ in range(TURNS):
            for name in list(taken):
                try:
                    taken[name].append(_in_process(machines, name))
                except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                    print(f"{name} is left out: {_reason(error)}")
                    del taken[name]
    for name, seconds in taken.items():
        print(f"{name:10}  {spread(seconds)} s")
    for peer in [name for name in taken if name != "ours" and "ours" in taken]:
        ratios = [mine / other for mine, other in zip(taken["ours"], taken[peer], strict=True)]
        asked = f", at most {LIMIT} is asked" if peer == "stock" else ""
        print(f"{'ratio to ' + peer:19}  {spread(ratios)}{asked}")


def _in_process(machines, name):
    *names, head = machines.names
    arguments = [str(machines.ssh_config), machines.address(head), names]
    code = (
        f"import json; from tests.bench.vms import {name}\n"
        f"print(json.dumps({name}(*{arguments!r})))"
    )
    time.sleep(SETTLE_S)
    done = machines.run(head, [sys.executable, "-c", code], timeout_s=PATIENCE_S)
    return json.loads(done.stdout.splitlines()[-1])


def _reason(error):
    if isinstance(error, subprocess.TimeoutExpired):
        return f"not ready after {PATIENCE_S} s"
    lines = error.stderr.strip().splitlines()
    return "\n".join(lines[-5:]) or shlex.join(error.cmd)
