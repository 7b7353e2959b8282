"""Starts that fail, what a host's entry may contain, and surveys without a start."""

import subprocess
import sys

import pytest
from clusters import quiet

import workbench as wb
from workbench.cluster.launchers.preflight import survey
from workbench.doctor import rules
from workbench.errors import StartFailed
from workbench.widgets.hosts_view import HostsView

# starts that fail


def refused(match):
    """The start fails with this message."""
    return pytest.raises(StartFailed, match=match)


def config_with(machines, folder, option, value):
    """The VMs' ssh configuration with another value of one option."""
    lines = [
        f"    {option} {value}" if option in line else line
        for line in machines.ssh_config.read_text().splitlines()
    ]
    path = folder / "config"
    path.write_text("\n".join(lines) + "\n")
    return path


# other failures of starts are compared with those of surveys below


def test_a_python_without_the_package(machines):
    """The error for an interpreter without this package says how to install it."""
    bare = "/usr/bin/python3"
    with refused("vm1: gradient-workbench is not installed for /usr/bin/python3"):
        wb.Cluster(hosts=[{"name": "vm1", "python": bare}], ssh_config=machines.ssh_config).start()


def test_a_key_that_is_refused(machines, tmp_path):
    """A VM that does not take the key is named, and the fix."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True
    )
    config = config_with(machines, tmp_path, "IdentityFile", tmp_path / "other")
    with refused("vm1: it refused the key"):
        wb.Cluster(hosts="vm1", ssh_config=config).start()


def test_a_host_key_that_is_not_known(machines, tmp_path):
    """Host keys are checked as ssh would: an unknown one stops the start."""
    known = tmp_path / "known"
    known.touch()
    config = config_with(machines, tmp_path, "UserKnownHostsFile", known)
    with refused("vm1: its host key is unknown here"):
        wb.Cluster(hosts="vm1", ssh_config=config).start()


# what a host may say


@pytest.mark.soak
def test_a_working_directory_and_variables_of_a_host(machines, tmp_path):
    """Ranks have their host's directory and variables; modules in that directory are found."""
    (tmp_path / "beside.py").write_text("answer = 42\n")
    host = {"name": "vm1", "directory": str(tmp_path), "environment": {"MY_NAME": "my value"}}
    with wb.Cluster(hosts=[host], ssh_config=machines.ssh_config) as cluster:
        source = "import os, beside\n(os.getcwd(), os.environ['MY_NAME'], beside.answer)"
        assert quiet(cluster, source).values == {0: (str(tmp_path), "my value", 42)}


@pytest.mark.soak  # tests/hosts/test_hosts.py reads host files
def test_a_host_file(machines, tmp_path):
    """A host file in OpenMPI's format gives the same ranks as a string."""
    path = tmp_path / "hosts"
    path.write_text("# two VMs\nvm1 slots=1 max_slots=2\nvm2:1\n")
    with wb.Cluster(hosts=path, ssh_config=machines.ssh_config) as cluster:
        assert [info.vm for info in cluster.ranks] == ["vm1", "vm2"]


# surveys without a start

LIMITS = {rule.name for rule in rules.LIMITS}


def differing(found):
    """The problems but those of this machine's own limits, which all VMs share."""
    return [one for one in found.preflight.problems if one.rule not in LIMITS]


@pytest.fixture(scope="module")
def unlike(machines, tmp_path_factory):
    """A survey of VMs: the second has another setting of NCCL, the third another MTU."""
    python = tmp_path_factory.mktemp("bin") / "python"
    python.write_text(f'#!/bin/sh\nNCCL_PROTO=LL exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    hosts = ["vm1", {"name": "vm2", "python": str(python)}, "vm3", "nowhere.invalid"]
    machines.run("vm3", ["ip", "link", "set", "eth0", "mtu", "1400"])
    try:
        return survey(hosts, machines.ssh_config)
    finally:
        machines.run("vm3", ["ip", "link", "set", "eth0", "mtu", "1500"])


def test_a_survey_reports_what_differs(unlike):
    """Every VM is surveyed without a rank: differences, and VMs that do not answer, are named."""
    assert [row["VM"] for row in unlike.preflight.rows] == ["vm1", "vm2", "vm3"]
    problems = {problem.subject: problem for problem in differing(unlike)}
    assert sorted(problems) == ["nowhere.invalid", "vm2", "vm3"]
    assert len(differing(unlike)) == 3
    unknown, mtu = problems["nowhere.invalid"], problems["vm3"]
    assert unlike.preflight.fatal == [unknown]
    assert "name is not known" in unknown.evidence
    assert "vm3 has 1400" in mtu.evidence
    assert unlike.snapshots["vm2"].nics[0].name == "ens192"
    shown = repr(HostsView(unlike))
    assert "vm3: MTU differs" in shown
    assert "fix: check the name" in shown


def test_a_survey_reports_vms_with_other_settings(unlike):
    """Differences that the doctor finds are listed with the others, with their fix."""
    (problem,) = [problem for problem in differing(unlike) if problem.subject == "vm2"]
    assert problem.evidence == "vm2 has NCCL_PROTO=LL; the other 2 have no NCCL_PROTO"
    assert "the same on every VM" in problem.fix


@pytest.fixture(scope="module")
def surveyed(machines):
    """The reasons why no rank can start on each of four VMs, by its name."""
    found = survey([*REFUSED.values()], machines.ssh_config)
    return {problem.subject: problem for problem in found.preflight.fatal}


REFUSED = {
    "name": {"name": "nowhere.invalid"},
    "python": {"name": "vm1", "python": "/opt/none/bin/python"},
    "directory": {"name": "vm2", "directory": "/no/such/place"},
}


@pytest.mark.parametrize(
    ("host", "match"),
    [
        ("name", "nowhere.invalid: its name is not known here"),
        ("python", "vm1: there is no such Python: /opt/none/bin/python"),
        ("directory", "vm2: the working directory cannot be entered"),
    ],
)
def test_a_survey_and_a_start_say_the_same(machines, surveyed, host, match):
    """A reason that stops a start is reported with the same VM, cause and fix in a survey."""
    name = REFUSED[host]["name"]
    hosts = ["vm3", REFUSED[host]] if host == "name" else [REFUSED[host]]
    cluster = wb.Cluster(hosts=hosts, ssh_config=machines.ssh_config)
    with refused(match) as caught:
        cluster.start()
    assert cluster.state == "stopped"
    same(surveyed[name], caught.value, name)


@pytest.mark.soak
def test_an_interface_that_is_not_there(machines):
    """An interface that a VM does not have is named with those that it has."""
    hosts = [{"name": "vm2", "interface": "ib7"}]
    (problem,) = survey(hosts, machines.ssh_config).preflight.fatal
    with refused("vm2: interface 'ib7': not on this VM.*name one of .*ens192") as caught:
        wb.Cluster(hosts=hosts, ssh_config=machines.ssh_config).start()
    same(problem, caught.value, "vm2")


def same(problem, error, name):
    """Assert that a survey's finding and the error of a start agree about a VM."""
    assert (problem.subject, problem.evidence, problem.fix) == (error.vm, error.cause, error.fix)
    assert (error.vm, bool(error.fix)) == (name, True)
    assert str(error) == f"{error.vm}: {error.cause}: {error.fix}"
