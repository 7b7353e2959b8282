"""Which VMs a cluster runs on: what users may write, and what never reaches ssh or a shell."""

import copy
import pickle

import pytest

from workbench.errors import UsageError
from workbench.hosts import Host, parse_hosts, text, total_slots

INJECTIONS = [
    "-oProxyCommand=x",
    "--help",
    "vm1;rm",
    "vm1 $(x)",
    "$(x)",
    "`x`",
    "vm1|x",
    "vm1&",
    "vm1>x",
    "vm1\nvm2",
    "vm1\n",
    "vm1\0",
    "vm 1",
    "vm1'",
    'vm1"',
    "vm1\\",
    "vm1*",
    "vm%h",
    "vm1=x",
    "../vm1",
    "..",
    "",
    "vm\uff11",
    "v" * 254,
    "fd00::1;x",
    "fe80::1%eth0;x",
    "fd00::zz",
    "1:2",
]


def host_file(folder, content):
    path = folder / "hostfile"
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("written", "hosts"),
    [
        ("vm1", [Host("vm1")]),
        ("vm1:2,vm2:2", [Host("vm1", 2), Host("vm2", 2)]),
        ("vm1,vm2", [Host("vm1"), Host("vm2")]),
        (" vm2:3 ,  vm1 ", [Host("vm2", 3), Host("vm1")]),
        ("me@vm1:2", [Host("vm1", 2, user="me")]),
        ("a@vm1,b@vm1,vm1", [Host("vm1", user="a"), Host("vm1", user="b"), Host("vm1")]),
        ("gpu_node-1.lab.example", [Host("gpu_node-1.lab.example")]),
        ("10.0.0.4:8", [Host("10.0.0.4", 8)]),
        ("[fd00::1]:2", [Host("fd00::1", 2)]),
        ("me@[fe80::1%eth0]", [Host("fe80::1%eth0", user="me")]),
        ("vm1:22", [Host("vm1", 22)]),
        ("vm1:1024", [Host("vm1", 1024)]),
        ("me@pod:2222", [Host("pod", user="me", port=2222)]),
        (
            "pod:2222:4,me@[fd00::1]:65535:2",
            [Host("pod", 4, port=2222), Host("fd00::1", 2, user="me", port=65535)],
        ),
        (["vm1:2", "me@vm2"], [Host("vm1", 2), Host("vm2", user="me")]),
        (
            (Host("vm1", port=22), Host("vm1", port=23)),
            [Host("vm1", port=22), Host("vm1", port=23)],
        ),
        ((name for name in ("vm1", "vm2")), [Host("vm1"), Host("vm2")]),
        (
            [{"name": "vm1", "slots": 2, "port": 2222, "environment": {"A": ""}}, {"name": "::1"}],
            [Host("vm1", 2, port=2222, environment={"A": ""}), Host("::1")],
        ),
    ],
)
def test_hosts_are_read(written, hosts):
    """Text, lists, Hosts and mappings give the same hosts, in the order written."""
    assert parse_hosts(written) == tuple(hosts)


@pytest.mark.parametrize(
    "written",
    ["vm1:2,vm2:2", "me@vm1:1,[fd00::1]:4", "b@vm1:2,a@[fe80::1%eth0]:3", "me@vm1:2222:1"],
)
def test_text_gives_back_what_was_written(written):
    """`parse_hosts` reads the text that `text` returns."""
    assert text(parse_hosts(written)) == written


def test_hosts_with_one_name_are_told_apart():
    """Those that share a name are shown with their users and ports, wherever they were written."""
    hosts = parse_hosts("me@pod:2222:2,me@pod:2223:2,vm1:2")
    assert [host.shown for host in hosts] == ["me@pod:2222", "me@pod:2223", "vm1"]
    assert [host.name for host in hosts] == ["pod", "pod", "vm1"]


def test_slots_add_up():
    """A cluster has the slots of all its hosts."""
    assert total_slots(parse_hosts("vm1:2,vm2,vm3:4")) == 7


@pytest.mark.parametrize("name", INJECTIONS)
def test_no_name_is_an_option_or_shell_text(name):
    """Such a name is refused at any position, and never becomes a host."""
    with pytest.raises(UsageError):
        Host(name)
    with pytest.raises(UsageError):
        parse_hosts([{"name": name}])


@pytest.mark.parametrize("user", [*INJECTIONS, "fd00::1", "a@b", "a:b"])
def test_no_user_is_an_option_or_shell_text(user):
    """Such a user is refused in a field and in front of an @."""
    with pytest.raises(UsageError):
        Host("vm1", user=user)
    with pytest.raises(UsageError):
        parse_hosts([f"{user}@vm1"])


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "no host named"),
        ("  ", "no host named"),
        ([], "no host named"),
        ("vm1,,vm2", "before or after a comma"),
        ("vm1,", "before or after a comma"),
        ("vm1:2,vm1:2", "vm1 is named twice. Write it once: vm1:4 gives it 4 slots"),
        ("a@vm1,a@vm1,a@vm1", "a@vm1 is named 3 times. Write it once: a@vm1:3 gives it 3 slots"),
        ([Host("::1", port=7), {"name": "::1", "port": 7}], r"\[::1\]:2 gives it 2 slots"),
        ("vm1:0", "slots 0: must be a whole number from 1 to 1024"),
        ("vm1:2222", "After the colon are the slots, not the port"),
        ("vm1:", "slots '': must be a whole number"),
        ("vm1:-1", "must be a whole number"),
        ("vm1:+2", "must be a whole number"),
        ("vm1:1_0", "must be a whole number"),
        ("vm1:²", "must be a whole number"),
        ("vm1: 2", "must be a whole number"),
        ("vm1:" + "9" * 5000, "must be a whole number"),
        ("vm1:2:2", "must be a whole number"),
        ("me@vm1:22:2", "the port, which is written before them .* is above 1024"),
        ("me@vm1:2222:", "slots '': must be a whole number"),
        ("me@vm1:65536", "slots '65536': must be a whole number|slots 65536: must be"),
        ("fd00::1", "IPv6 address needs brackets"),
        ("[fd00::1", ": not a host. Write name"),
        ("[vm1]:2", ": not a host. Write name"),
        ("[fd00::1]2", ": not a host. Write name"),
        ("-oProxyCommand=x", "'-oProxyCommand=x': not a host name"),
        ("vm1;rm", "'vm1;rm': not a host name"),
        ("vm1 $(x)", r"'vm1 \$\(x\)': not a host name"),
        ("a@-b", "'-b': not a host name"),
        ("-a@b", "'-a': not a user name"),
        ("a@b@c", "'b@c': not a host name"),
        ("@vm1", "'': not a user name"),
        ("ssh://me@vm1:22", ": not a user name"),
        (["vm1,vm2"], "'vm1,vm2': not a host name"),
        ("no/such/hostfile", "host file no/such/hostfile: No such file"),
        ("~/no such/hostfile", "No such file"),
        ("/no\0such", "host file"),
        (b"vm1:2", "a bytes names no hosts"),
        (Host("vm1"), "a Host names no hosts"),
        ({"name": "vm1"}, "a dict names no hosts"),
        (None, "a NoneType names no hosts"),
        (4, "a int names no hosts"),
        ([4], "4: not a host"),
        (
            [{"name": "vm1", "gpus": 2}],
            "'gpus': not a field of a host. Known are name",
        ),
        ([{"slots": 2}], "a host has no name"),
    ],
)
def test_what_is_no_list_of_hosts_is_refused(written, said):
    """Each refusal says what was found and what to write instead."""
    with pytest.raises(UsageError, match=said):
        parse_hosts(written)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"slots": 0}, "slots 0: must be a whole number from 1 to 1024"),
        ({"slots": 1025}, "slots 1025"),
        ({"slots": True}, "slots True"),
        ({"slots": "2"}, "slots '2'"),
        ({"slots": 2.0}, "slots 2.0"),
        ({"slots": None}, "slots None"),
        ({"port": 0}, "port 0: must be a whole number from 1 to 65535"),
        ({"port": 65536}, "port 65536"),
        ({"port": "22"}, "port '22'"),
        ({"user": 7}, "7: not a user name"),
        ({"python": ""}, "python: empty"),
        ({"python": "a\nb"}, "python: contains a NUL or a line break"),
        ({"directory": "a\0b"}, "directory: contains a NUL or a line break"),
        ({"directory": 7}, "directory: int, not text"),
        ({"interface": "eth0;x"}, "'eth0;x': not a network interface"),
        ({"interface": "-eth0"}, ": not a network interface"),
        ({"interface": "e" * 16}, ": not a network interface"),
        ({"interface": ""}, ": not a network interface"),
        ({"interface": "eth0\n"}, ": not a network interface"),
        ({"environment": None}, "environment: NoneType, not a mapping"),
        ({"environment": {"1A": "x"}}, "'1A': not an environment variable"),
        ({"environment": {"A;x": "x"}}, ": not an environment variable"),
        ({"environment": {"A\n": "x"}}, ": not an environment variable"),
        ({"environment": {"A": 4}}, "environment variable A: int, not text"),
        ({"environment": {"A": "x\0"}}, "environment variable A: contains a NUL"),
    ],
)
def test_a_field_has_only_values_that_it_can_have(fields, said):
    """A Host cannot be made with them, and so no mapping can either."""
    with pytest.raises(UsageError, match=said):
        Host("vm1", **fields)
    with pytest.raises(UsageError, match=said):
        parse_hosts([{"name": "vm1", **fields}])


def test_a_directory_may_be_any_text_of_one_line():
    """Blanks and signs of the shell are the caller's to quote, as in every path."""
    host = Host("vm1", directory="/data/my runs; $(x)", python="~/env/bin/python")
    assert parse_hosts([host]) == (host,)


def test_a_host_is_a_value():
    """Equal hosts are one in a set; a host survives pickling and copying, and cannot change."""
    variables = {"A": "1"}
    host = Host("vm1", 2, environment=variables)
    variables["A"] = "-"
    assert host.environment == {"A": "1"}
    assert {host, Host("vm1", 2, environment={"A": "1"})} == {host}
    assert host != Host("vm1", 2, environment={"A": "2"})
    assert pickle.loads(pickle.dumps(host)) == host == copy.deepcopy(host)
    with pytest.raises(TypeError):
        host.environment["A"] = "2"


def test_a_message_shows_no_value_of_the_environment(tmp_path):
    """A token in a host's environment stays out of what an error says."""
    with pytest.raises(UsageError) as error:
        Host("vm1", environment={"TOKEN": "secret\n"})
    assert "secret" not in str(error.value)
    with pytest.raises(UsageError, match=r"env\.TOKEN differs in a line above") as error:
        parse_hosts(host_file(tmp_path, "vm1 env.TOKEN=secret\nvm1 env.TOKEN=secret2\n"))
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "hosts"),
    [
        ("vm1 slots=2\nvm2 slots=2\n", [Host("vm1", 2), Host("vm2", 2)]),
        ("vm1\nvm2", [Host("vm1"), Host("vm2")]),
        ("\ufeffvm1\r\nvm2 slots=2\r\n", [Host("vm1"), Host("vm2", 2)]),
        ("# it's ours\n\n  vm1 slots=2 # don't\n   \n#vm2\n", [Host("vm1", 2)]),
        (
            "vm1:3\nme@vm2:2\n[fd00::1]:2",
            [Host("vm1", 3), Host("vm2", 2, "me"), Host("fd00::1", 2)],
        ),
        ("vm1 slots=2 max_slots=4\nvm2 max-slots=1", [Host("vm1", 2), Host("vm2")]),
        ("vm1 max_slots=99999 slots=2", [Host("vm1", 2)]),
        ("vm1 slots=2\nvm2\nvm1 slots=3\nvm1", [Host("vm1", 6), Host("vm2")]),
        ("vm1 port=22\nvm1 port=23", [Host("vm1", port=22), Host("vm1", port=23)]),
        (
            "vm1 python=/a env.A=1\nvm1 python=/a directory=/d env.B=2",
            [Host("vm1", 2, python="/a", directory="/d", environment={"A": "1", "B": "2"})],
        ),
        (
            (
                "vm1\tslots=2 user=me port=2222 python='/my env/bin/python' directory=\"/a #b\" "
                "interface=eth0 env.OPTS=a=b#c env.EMPTY= env.SAY='it is'\n"
            ),
            [
                Host(
                    "vm1",
                    2,
                    "me",
                    2222,
                    "/my env/bin/python",
                    "/a #b",
                    "eth0",
                    {"OPTS": "a=b#c", "EMPTY": "", "SAY": "it is"},
                )
            ],
        ),
    ],
)
def test_host_files_are_read(tmp_path, content, hosts):
    """Horovod's and Open MPI's files are read, and our keys beyond; a host named twice adds up."""
    path = host_file(tmp_path, content)
    assert parse_hosts(path) == parse_hosts(str(path)) == tuple(hosts)


def test_text_that_names_a_file_is_a_host_file(tmp_path, monkeypatch):
    """A file's bare name is enough, in the working directory or at home."""
    host_file(tmp_path, "vm1 slots=2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_hosts("hostfile") == parse_hosts("~/hostfile") == (Host("vm1", 2),)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("vm1\nvm2 gpus=2", "hostfile, line 2: 'gpus': unknown key. Known keys are slots, max_s"),
        ("vm1 name=vm2", "'name': unknown key"),
        ("vm1 2", "line 1: '2': not key=value"),
        ("vm1 slots = 2", "'slots': not key=value"),
        ("vm1 slots=", "slots '': must be a whole number"),
        ("vm1 slots=0", "must be a whole number from 1 to 1024"),
        ("vm1 slots=2#two", "slots '2#two'"),
        ("vm1 slots=2 slots=2", "slots: given twice"),
        ("vm1:2 slots=2", "slots: given twice"),
        ("me@vm1 user=me", "user: given twice"),
        ("vm1 max_slots=2 max-slots=2", "max_slots: given twice"),
        ("vm1 env.A=1 env.A=2", r"env\.A: given twice"),
        ("vm1 slots=4 max_slots=2", "vm1: 4 slots, but max_slots=2"),
        ("vm1 slots=2 max_slots=3\n\nvm1 slots=2", "line 3: vm1: 4 slots, but max_slots=3"),
        ("vm1 slots=1000\nvm1 slots=1000", "line 2: slots 2000"),
        ("vm1 python=/a\nvm1 python=/b", "python is '/a' in a line above and '/b' here"),
        ("vm1 port=x", "port 'x': must be a whole number"),
        ("vm1 user=-x", "'-x': not a user name"),
        ("vm1 directory=", "directory: empty"),
        ("vm1 directory='a b", "a quote is not closed"),
        ("vm1 env.1=x", "'1': not an environment variable"),
        ("vm1 python=a\0b", "python: contains a NUL"),
        ("vm1,vm2", "line 1: 'vm1,vm2': not a host name"),
        ("vm1#x", "'vm1#x': not a host name"),
        ("-oProxyCommand=x", "'-oProxyCommand=x': not a host name"),
        ("vm1;rm", ": not a host name"),
        ("vm1 $(x)", r"'\$\(x\)': not key=value"),
        ("'vm1 $(x)'", ": not a host name"),
        ("a@-b", "'-b': not a host name"),
        ("", "it names no host"),
        ("# none\n", "it names no host"),
    ],
)
def test_a_bad_line_is_named(tmp_path, content, said):
    """The message has the file, the line's number, and what is allowed there."""
    with pytest.raises(UsageError, match=said) as error:
        parse_hosts(host_file(tmp_path, content))
    assert "hostfile" in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """A missing file, a directory and a file that is no text are refused as such."""
    with pytest.raises(UsageError, match="missing: No such file"):
        parse_hosts(tmp_path / "missing")
    with pytest.raises(UsageError, match="Is a directory"):
        parse_hosts(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8 text"):
        parse_hosts(tmp_path / "binary")
