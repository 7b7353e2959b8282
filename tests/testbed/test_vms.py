"""VMs that this machine makes: what is in them, how they are joined, and that nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from timers import FAR_S, PROCESS_S, eventually

from workbench.errors import UsageError, VmsUnavailable
from workbench.testbed import clean_up, vms, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

RECEIVER = """
import socket, time
server = socket.create_server(("", 5000))
print("up", flush=True)
connection, _ = server.accept()
buffer, received, first = bytearray(1 << 20), 0, None
while size := connection.recv_into(buffer):
    first = first or time.monotonic()
    received += size
print(received * 8e-9 / (time.monotonic() - first))
"""
SENDER = """
import socket, sys
connection, block = socket.create_connection((sys.argv[1], 5000)), bytes(1 << 20)
for _ in range(int(sys.argv[2])):
    connection.sendall(block)
"""
ECHO = """
import socket
server = socket.create_server(("", 5001))
print("up", flush=True)
connection, _ = server.accept()
while data := connection.recv(100):
    connection.sendall(data)
"""
MAKER = """
import time
from workbench.testbed import vms
with vms(1) as machines:
    print(machines.ssh_config.parent.name, flush=True)
    time.sleep(600)
"""


def python(code, *arguments):
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


def started(command):
    """A process that has said its first line, and that line."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def ssh(machines, name, *command):
    with_config = ["ssh", "-F", str(machines.ssh_config), name, *command]
    return subprocess.run(
        with_config, capture_output=True, text=True, timeout=PROCESS_S, check=False
    )


def name_of(machines):
    """Return the prefix of all names that belong to these VMs."""
    return machines.ssh_config.parent.name


def left(name):
    """Everything on this machine that bears a name: devices, namespaces, files, processes."""
    found = [device for _, device in socket.if_nameindex() if device.startswith(name)]
    for folder in map(Path, ("/run/netns", "/etc/netns", "/run/workbench-vms")):
        found += [str(path) for path in folder.glob(f"{name}*")]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if name in words:
            found.append(words)
    return found


def gbps(machines, source, target, megabytes):
    """Return the rate of TCP from one VM to another."""
    receiver, _ = started(machines.inside(target, python(RECEIVER)))
    address = machines.address(target)
    machines.run(source, python(SENDER, address, str(megabytes)), timeout_s=FAR_S)
    return float(receiver.communicate(timeout=PROCESS_S)[0])


@pytest.fixture(scope="module")
def machines():
    """Two VMs at 1 Gbit/s, and one that is not shaped."""
    with vms(3, gbps=[1.0, 1.0, None]) as running:
        yield running


def test_a_shell_runs_nothing_of_the_users_own(machines):
    """Bash runs ~/.bashrc for sshd at level 1, and what is killed there may leave a lock."""
    assert ssh(machines, "vm1", "echo $SHLVL").stdout == "2\n"


def test_ssh_leads_into_each(machines):
    """The config alone leads ssh into the VM of that name, as root."""
    for name in machines.names:
        done = ssh(machines, name, "hostname; id -un")
        assert done.stdout.split() == [name, "root"], done.stderr
    assert "Accepted publickey for root" in machines.log("vm1").read_text()


def test_a_vm_reaches_the_next_by_ssh(machines):
    """The same config works within a VM, by name and with the host's key checked."""
    done = ssh(machines, "vm1", f"ssh -F {machines.ssh_config} vm3 hostname")
    assert done.stdout.strip() == "vm3", done.stderr


def test_without_the_key_nobody_gets_in(machines, tmp_path):
    """A password is not asked for, and another key is not taken."""
    other = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    config = tmp_path / "config"
    text = machines.ssh_config.read_text()
    config.write_text(text.replace(f"{machines.ssh_config.parent}/user_key", str(other)))
    command = ["ssh", "-F", str(config), "vm1", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, check=False)
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_names_resolve_as_on_debian(machines):
    """A VM's own name is on the loopback, the others' are their addresses."""
    for name in machines.names:
        expected = "127.0.1.1" if name == "vm2" else machines.address(name)
        assert machines.run("vm2", ["getent", "ahostsv4", name]).stdout.split()[0] == expected


def test_names_and_slots(machines):
    """They are spelled as Horovod takes them."""
    assert machines.names == ("vm1", "vm2", "vm3")
    assert machines.hosts() == "vm1:1,vm2:1,vm3:1"
    assert machines.hosts(slots=[2, 1, 4]) == "vm1:2,vm2:1,vm3:4"
    with pytest.raises(UsageError, match="2 numbers for 3 VMs"):
        machines.hosts(slots=[1, 1])
    with pytest.raises(UsageError, match=r"'vm4': no such VM\. Use one of vm1, vm2, vm3"):
        machines.address("vm4")


def test_a_vm_has_one_interface_of_its_own(machines):
    """It sees eth0 and nothing of this machine's network, and this machine is on the same one."""
    shown = machines.run("vm1", ["ls", "/sys/class/net"]).stdout.split()
    assert shown == ["eth0", "lo"]
    assert machines.kernel_address.rpartition(".")[0] == machines.address("vm1").rpartition(".")[0]


@pytest.mark.timing
def test_a_link_has_its_rate(machines):
    """At 1 Gbit/s, TCP moves nearly as much and never more, in both directions."""
    for source, target in (("vm1", "vm2"), ("vm1", "vm3"), ("vm3", "vm1")):
        rates = []
        while not rates or rates[-1] <= 0.8:  # a busy machine may be slower than the link at times
            rates.append(gbps(machines, source, target, 50))
        assert max(rates) < 1.0


@pytest.mark.soak
@pytest.mark.timing
def test_a_rate_can_be_changed(machines):
    """At 10 Gbit/s and without a rate, the same VMs move clearly more."""
    try:
        for rate in (10.0, None):
            for name in ("vm1", "vm2"):
                machines.shape(name, rate)
            assert eventually(lambda: gbps(machines, "vm1", "vm2", 200) > 1.5)
    finally:
        for name in ("vm1", "vm2"):
            machines.shape(name, 1.0)
    with pytest.raises(UsageError, match="gbps=0: a link needs a positive rate"):
        machines.shape("vm1", 0.0)


def test_a_vm_that_is_cut_off_is_silent(machines):
    """Its connections hang instead of breaking, and continue once the network is back."""
    server, _ = started(machines.inside("vm2", python(ECHO)))
    with socket.create_connection((machines.address("vm2"), 5001), 60) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        connection.settimeout(0.5)
        machines.cut("vm2")
        try:
            connection.sendall(b"b")
            with pytest.raises(TimeoutError):
                connection.recv(1)
            assert machines.run("vm2", ["cat", "/sys/class/net/eth0/carrier"]).stdout == "1\n"
            with pytest.raises(OSError, match=r"timed out|No route to host"):
                socket.create_connection((machines.address("vm2"), 22), 0.5)
        finally:
            machines.mend("vm2")
        connection.settimeout(120)
        assert connection.recv(1) == b"b"
    assert server.wait(60) == 0
    assert ssh(machines, "vm2", "hostname").stdout == "vm2\n"


def test_run_fails_as_subprocess_does(machines):
    """A command that fails raises, or has its status in the result."""
    with pytest.raises(subprocess.CalledProcessError):
        machines.run("vm1", ["false"])
    assert machines.run("vm1", ["false"], check=False).returncode == 1


def test_names_may_be_chosen():
    """Interfaces may differ, and a VM's own name may be its address."""
    with vms(2, interfaces=["ens5", "enp1s0"], own_name_on_loopback=False) as machines:
        assert machines.run("vm1", ["ls", "/sys/class/net"]).stdout.split() == ["ens5", "lo"]
        assert machines.run("vm2", ["ls", "/sys/class/net"]).stdout.split() == ["enp1s0", "lo"]
        own = machines.run("vm1", ["getent", "ahostsv4", "vm1"]).stdout.split()[0]
        assert own == machines.address("vm1")


def test_several_at_once(machines):
    """VMs of two calls have nothing in common, and one's end leaves the other's alone."""
    with vms(1) as others:
        assert name_of(others) != name_of(machines)
        assert others.kernel_address != machines.kernel_address
        assert ssh(others, "vm1", "hostname").stdout == "vm1\n"
    assert ssh(machines, "vm1", "hostname").stdout == "vm1\n"


def test_nothing_is_left():
    """With the block go sshd, what was started by ssh and let loose there, links and files."""
    with vms(1) as machines:
        name = name_of(machines)
        loose = f"exec -a {name}-loose sleep 1234"
        ssh(machines, "vm1", f"nohup setsid bash -c '{loose}' >/dev/null 2>&1 &")
        assert eventually(lambda: any(line.startswith(f"{name}-loose") for line in left(name)))
        assert (machines.ssh_config.parent.stat().st_mode & 0o777) == 0o700
    assert left(name) == []


def test_an_error_half_way_leaves_nothing():
    """An interface's name that the kernel refuses takes the first VM down too."""
    mine = f"wb{os.getpid():06x}"
    before = sorted(left(mine))
    with pytest.raises(VmsUnavailable, match="link add"), vms(2, interfaces=["eth0", "a/b"]):
        pass
    assert sorted(left(mine)) == before


def test_numbers_that_do_not_fit():
    """They are refused before anything is made."""
    with pytest.raises(UsageError, match="n=0: not a possible number of VMs"), vms(0):
        pass
    with pytest.raises(UsageError, match="2 rates for 3 VMs"), vms(3, gbps=[1.0, 1.0]):
        pass
    with pytest.raises(UsageError, match="1 names for 2 VMs"), vms(2, interfaces=["eth0"]):
        pass


def test_root_gets_in_though_its_password_is_locked(tmp_path):
    """As Ubuntu locks it: sshd without PAM would turn its key away."""
    (tmp_path / "shadow").write_text("root:!:19000:0:99999:7:::\n")
    code = """if True:
        import subprocess
        from workbench.testbed import vms
        with vms(1) as machines:
            subprocess.run(["ssh", "-F", machines.ssh_config, "vm1", "hostname"])
    """
    lock = f'mount --bind {tmp_path}/shadow /etc/shadow && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", lock, "sh", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "vm1\n", done.stderr


def test_what_a_dead_maker_left_is_taken_down(machines):
    """After a SIGKILL the VMs remain; the next call removes them, and only them."""
    maker, name = started([sys.executable, "-c", MAKER])
    assert any("sshd" in line for line in left(name))
    maker.kill()
    maker.wait()
    with vms(1):
        assert left(name) == []
    assert ssh(machines, "vm1", "hostname").stdout == "vm1\n"


def test_clean_up_spares_the_living():
    """It takes down what the dead left, and nothing else."""
    maker, name = started([sys.executable, "-c", MAKER])
    try:
        assert name not in clean_up()
        assert left(name)
    finally:
        maker.kill()
        maker.wait()
    clean_up()
    assert left(name) == []


def test_the_command_line_makes_them_until_it_is_stopped():
    """`python -m workbench.testbed` says how to get in; Ctrl-C takes them down."""
    command = [sys.executable, "-m", "workbench.testbed", "2", "--gbps", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines = []
    while not lines or "Ctrl-C" not in lines[-1]:
        lines.append(process.stdout.readline())
    (way_in,) = (line.split() for line in lines if "ssh -F" in line)
    done = subprocess.run([*way_in, "hostname"], capture_output=True, text=True, check=False)
    assert done.stdout == "vm1\n", done.stderr
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PROCESS_S)[0].strip() == "The VMs were removed."
    assert process.returncode == 0
    assert left(Path(way_in[2]).parent.name) == []


def test_a_missing_program_is_named(tmp_path, monkeypatch):
    """With the Debian package that brings it, before anything is made."""
    for program in ("bridge", "hostname", "ssh", "ssh-keygen", "sshd", "tc", "unshare"):
        (tmp_path / program).symlink_to(shutil.which(program))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_not() == "ip is not on the PATH; on Debian: apt-get install iproute2"
    with pytest.raises(VmsUnavailable, match="apt-get install iproute2"), vms(1):
        pass
    assert clean_up() == ()
