"""A second user of the machine, without keys: cannot connect, read, write or signal anything."""

from __future__ import annotations

import socket
import stat
from pathlib import Path


def test_no_port_answers_without_keys(planted, second_user):
    """Each is on the loopback interface, and refuses whoever has no keys for it."""
    ports = planted.listening()
    assert ports
    assert {address for address, _ in ports} == {"127.0.0.1"}
    found = second_user(ports=list(ports))
    assert found["uid"] != 0
    assert set(found["ports"].values()) == {"ZeroMQ CURVE"}, found["ports"]
    assert planted.run("rank + 1") == {"0": 1, "1": 2}


def test_no_socket_of_an_agent_or_controller(planted, second_user):
    """They exist, with any mode: the folder is what keeps others out."""
    sockets = {path for path in planted.sockets() if path.startswith("/")}
    assert {Path(path).name for path in sockets} >= {"agent.sock", "controller.sock"}
    abstract = [path for path in planted.sockets() if path.startswith("@")]
    assert abstract == []
    found = second_user(paths=sorted(sockets))["paths"]
    assert set(map(tuple, found.values())) == {()}, found


def test_no_file_of_runs_state_and_keys(planted, second_user):
    """Whatever the umask: every file and folder of ours is closed to others."""
    own = [
        planted.folder / "data",
        planted.folder / "state",
        planted.folder / "jupyter",
        *(planted.folder / "tmp").glob("workbench-*"),
    ]
    paths = [path for top in own if top.exists() for path in (top, *top.rglob("*"))]
    names = {path.name for path in paths}
    assert {"run.json", "iterations-0.arrows", "cluster.json", "rank-0.log"} <= names
    assert "ipcontroller-client.json" in names
    found = second_user(paths=list(map(str, paths)))["paths"]
    assert {path: can for path, can in found.items() if can} == {}
    for path in filter(Path.exists, own):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


def test_no_process_can_be_read_or_signalled(planted, second_user):
    processes = list(planted.processes())
    assert len(processes) >= 5  # kernel, agent, controller and two ranks
    found = second_user(processes=processes)["processes"]
    assert {pid: can for pid, can in found.items() if can} == {}


def test_the_probe_sees_what_is_open(planted, second_user, tmp_path_factory):
    """What others may use is found: an open file, folder and port."""
    folder = planted.folder / "tmp" / "open"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "file").write_text("x")
    (folder / "file").chmod(0o666)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(folder / "socket"))
        local.listen()
        (folder / "socket").chmod(0o777)
        found = second_user(
            ports=[server.getsockname()], paths=[str(folder), *map(str, folder.iterdir())]
        )
    assert list(found["ports"].values()) == ["accepts, says nothing"]
    assert found["paths"] == {
        str(folder): ["list", "write"],
        str(folder / "file"): ["read", "write"],
        str(folder / "socket"): ["connect"],
    }
