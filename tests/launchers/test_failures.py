"""What failed starts say: a cause and a fix, by what ssh or the agent reported."""

import sys

import pytest

from workbench.cluster.agent import _fix
from workbench.cluster.launchers.ssh import SshLauncher
from workbench.hosts import Host

UNKNOWN_KEY = "No ED25519 host key is known for 10.64.7.1 and you have requested strict checking."
NO_PACKAGE = (
    "/usr/bin/python3: Error while finding module specification for 'workbench.agent.relay' "
    "(ModuleNotFoundError: No module named 'workbench')"
)
KEX = "kex_exchange_identification: Connection closed by remote host"


@pytest.mark.parametrize(
    ("code", "said", "cause", "fix"),
    [
        (127, "bash: line 1: /opt/py: No such file or directory", "no such Python", "python="),
        (1, "/opt/py: Command not found.", "no such Python", "python="),
        (
            255,
            f"/bin/bash: line 1: exec: /opt/none: not found\n{KEX}",
            "the ProxyCommand of its ssh config cannot be run",
            "ProxyCommand",
        ),
        (
            255,
            f"/bin/bash: line 1: exec: /opt/none: cannot execute: No such file or directory\n{KEX}",
            "the ProxyCommand of its ssh config cannot be run",
            "ProxyCommand",
        ),
        (
            255,
            "no such identity: /x: No such file or directory\nvm1: Permission denied (publickey).",
            "it refused the key",
            "IdentityFile",
        ),
        (
            255,
            "trainer@10.64.7.1: Permission denied (publickey).",
            "it refused the key (trainer@10.64.7.1: Permission denied (publickey).)",
            "let `ssh vm1` work without a password (ssh-copy-id, or IdentityFile in the config)",
        ),
        (
            255,
            f"{UNKNOWN_KEY}\nHost key verification failed.",
            "its host key is unknown here, or not the one that is known",
            "connect once by hand with ssh",
        ),
        (
            255,
            "ssh: Could not resolve hostname vm1: Name or service not known",
            "its name is not known here (ssh: Could not resolve hostname vm1",
            "give its address as HostName in the ssh config",
        ),
        (
            255,
            "ssh: connect to host 10.64.7.1 port 22: Connection refused",
            "nothing answers on its ssh port",
            "start sshd there",
        ),
        (
            255,
            "ssh: connect to host 10.64.7.1 port 22: Connection timed out",
            "it does not answer",
            "check that the VM is up",
        ),
        (
            255,
            "/x/config: line 3: Bad configuration option: hostnam",
            "the ssh config cannot be used",
            "correct the file that is named here",
        ),
        (
            1,
            NO_PACKAGE,
            f"gradient-workbench is not installed for {sys.executable} there",
            "-m pip install gradient-workbench",
        ),
        (
            1,
            "ModuleNotFoundError: No module named 'psutil'",
            f"{sys.executable} lacks psutil there",
            "install gradient-workbench there again",
        ),
        (None, "", "its agent did not answer in time", "check that `ssh vm1` works and is quick"),
        (
            255,
            "Cannot execute command-line and remote command.",
            "its ssh config has a RemoteCommand",
            "remove RemoteCommand",
        ),
        (0, "", "ended with exit status 0", "`echo hello | ssh vm1 cat`"),
        (
            1,
            "This account is not available.",
            "(This account is not available.)",
            "read its output",
        ),
        (255, KEX, "it closed the connection", "log of sshd"),
    ],
)
def test_a_failure_has_a_cause_and_a_fix(code, said, cause, fix):
    """A missing file on this machine is no missing Python there; without output, none is named."""
    error = SshLauncher(None).failure(Host("vm1"), code, said)
    text = str(error)
    assert text.startswith("vm1: ")
    assert cause in text
    assert fix in text


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("[Errno 2] No usable temporary directory found in ['/tmp']", "free space"),
        ("[Errno 28] No space left on device: '/tmp/workbench-rank-x'", "free space"),
        ("[Errno 11] Resource temporarily unavailable", "fewer"),
        ("ImportError: libtorch_cpu.so: failed to map segment from shared object", "ulimit -v"),
        ("ImportError: libtorch_cpu.so: cannot open shared object file", "fewer"),
    ],
)
def test_an_agent_without_space_or_memory_has_its_fix(text, fix):
    """Neither a full disk nor a memory limit is fixed by fewer ranks or another installation."""
    assert fix in _fix(text, "ask for fewer ranks")
