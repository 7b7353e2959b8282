"""A real Slurm on this machine alone: munge, a controller and two nodes, on loopback."""

import atexit
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

from timers import LIMITS_FACTOR, eventually

_CONFIG = """
ClusterName=tests
SlurmctldHost={here}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SchedulerParameters=sched_min_interval=0
ReturnToService=0
MpiDefault=none
KillWait=2
GresTypes=gpu
NodeName=n1 NodeHostname={here} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 Gres=gpu:2
NodeName=n2 NodeHostname={here} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 Gres=gpu:2
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=60 State=UP
PartitionName=brief Nodes=n1 MaxTime=1 State=UP
"""


def why_not():
    """Why no Slurm can be started here; None if one can."""
    if os.getuid():
        return "only root can start Slurm's daemons"
    programs = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
    missing = [name for name in programs if shutil.which(name, path=_path()) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def _path():
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def slurm(*command):
    """Run one of Slurm's commands, and return its output."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def submit(*arguments):
    """Submit a job that sleeps, and return its id."""
    quiet = ("--output=/dev/null", "--wrap=exec sleep 600")
    return slurm("sbatch", "--parsable", *arguments, *quiet)


def state_of(job):
    """The state of a job; empty when it has ended completely."""
    return slurm("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T")


def idle():
    """Whether no job is left that has not ended completely."""
    return not slurm("squeue", "--noheader")


@contextmanager
def running():
    """Provide Slurm; yield the folder of the configuration, which SLURM_CONF names.

    Its daemons are kept for the next call, unless the block fails.
    """
    with _own_variables(), ExitStack() as unless_kept:
        folder, daemons = _idle.pop() if _idle else _start()
        unless_kept.push(daemons)
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        try:
            yield folder
        finally:
            slurm("scancel", "--user=root")
            eventually(idle)
        unless_kept.pop_all()
        _idle.append((folder, daemons))


@contextmanager
def _own_variables():
    """Remove Slurm's variables from the environment; restore them after the block."""
    before = {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
    for name in before:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.pop("SLURM_CONF", None)
        os.environ.update(before)


_idle: list[tuple[Path, ExitStack]] = []


@atexit.register
def end_idle_slurm():
    """End the daemons that are kept."""
    while _idle:
        _idle.pop()[1].close()


def _start():
    """Start the daemons; return the folder of the configuration, and what ends them."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o711)  # munge refuses a socket that not every user can reach
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        _configure(folder)
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        munge = ("--key-file", "key", "--socket", "munge.sock", "--pid-file", "munged.pid")
        options = [f"{folder}/{word}" if not word.startswith("--") else word for word in munge]
        seed = ("--log-file", f"{folder}/munged.log", "--seed-file", f"{folder}/seed")
        stack.enter_context(_daemon(folder, "munged", "--foreground", *options, *seed))
        assert eventually((folder / "munge.sock").exists), _said(folder)
        stack.enter_context(_daemon(folder, "slurmctld", "-D"))
        stack.enter_context(_daemon(folder, "slurmd", "-D", "-N", "n1"))
        stack.enter_context(_daemon(folder, "slurmd", "-D", "-N", "n2"))
        assert eventually(_ready), _said(folder)
        return folder, stack.pop_all()


def _configure(folder):
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    (folder / "state").mkdir()
    gpus = f"{folder}/gpu"
    for number in range(2):
        os.mknod(f"{gpus}{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    given = {"folder": folder, "ports": ports, "here": socket.gethostname().split(".")[0]}
    (folder / "slurm.conf").write_text(_CONFIG.format(**given))
    (folder / "gres.conf").write_text(f"NodeName=n1,n2 Name=gpu File={gpus}[0-1]\n")
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))


@contextmanager
def _daemon(folder, *command):
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".out", delete=False) as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PATH": _path()},
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10 * LIMITS_FACTOR)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready():
    command = ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%T"]
    nodes = subprocess.run(command, capture_output=True, text=True, check=False)
    return nodes.stdout.split() == ["idle", "idle"]


def _said(folder):
    return "\n".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.out"))
