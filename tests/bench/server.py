"""The live feed's share of a core, against what other panels' servers spend on theirs.

Each server runs alone with one idle kernel, and is asked once a second by its
own means: ours and jupyterlab-nvdashboard by WebSocket, jupyter-resource-usage by
REST. The peers live in an environment of their own, made on the first run.
"""

import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path

import websocket

from tests.bench.bounds import at_most, sized
from tests.bench.stats import spread
from tests.server.process import BASE, TOKEN, Server

LIMIT_PERCENT = 1
ROUNDS = sized(3, 1)
WINDOW_S = sized(8, 3)
CLIENTS = sized((1, 20), (1,))
MAKES_PEERS = sized(True, False)
PEERS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / (
    "gradient-workbench/bench-peers"
)
RIGHT = {"Authorization": f"token {TOKEN}"}


def measure():
    """Take turns; what each spends beyond the same server without a client."""
    servers = {"workbench": _start("workbench", [sys.executable], _workbench)}
    try:
        python, why = _peers()
        for name, listen, options in (
            ("jupyter-resource-usage", _resource_usage, []),
            (
                "jupyter-resource-usage, CPU too",
                _resource_usage,
                ["--ResourceUseDisplay.track_cpu_percent=True"],
            ),
            ("jupyterlab-nvdashboard", _nvdashboard, []),
        ):
            try:
                if python is None:
                    raise AssertionError(why)
                module = name.partition(",")[0].replace("-", "_")
                servers[name] = _start(module, [python], listen, options)
            except AssertionError as error:
                print(f"{name} does not run here: {str(error)[-200:]}")
        _tell_what(servers)
        spent = _rounds(servers)
    finally:
        for server, _ in servers.values():
            server.stop()
    yield from _bounds(spent)


def _rounds(servers):
    spent = {}
    for _ in range(ROUNDS):
        for name, (server, listen) in servers.items():
            for clients in (0, *CLIENTS):
                spent.setdefault((name, clients), []).append(_share(server, listen, clients))
    return spent


def _bounds(spent):
    """Print what each server spends, and yield the bounds of ours."""
    idle = {name: statistics.median(all_) for (name, n), all_ in spent.items() if n == 0}
    beyond = {
        (name, n): [one - idle[name] for one in all_] for (name, n), all_ in spent.items() if n
    }
    for clients in CLIENTS:
        ours = statistics.median(beyond["workbench", clients])
        for name in idle:
            shares = beyond[name, clients]
            title = f"{clients:2} clients  {name:32}"
            if name == "workbench":
                yield at_most(title, shares, LIMIT_PERCENT, "% of a core")
            else:
                ratio = statistics.median(shares) / ours
                print(f"{title} {spread(shares)} % of a core, {ratio:.2g} times ours")
    for name in idle:
        print(f"no client   {name:32} {spread(spent[name, 0])} % of a core")


def _peers():
    """Return the Python of the peers' environment; None where it cannot be made, and why."""
    python = PEERS / "bin/python"
    if not (PEERS / "whole").exists():
        if not MAKES_PEERS:
            return None, "a smoke run does not install the peers"
        venv.create(PEERS, with_pip=True, clear=True)
        names = ["jupyter-resource-usage", "jupyterlab-nvdashboard", "ipykernel"]
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", *names],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            return None, f"pip could not install it: {done.stderr.strip()[-200:]}"
        (PEERS / "whole").touch()
    return python, ""


def _start(module, python, listen, options=()):
    ours = module == "workbench"
    environment = {} if ours else {"PYTHONPATH": ""}
    server = Server(*options, extension=module, environment=environment, python=python[0])
    about = json.dumps(
        {"path": "a.ipynb", "type": "notebook", "name": "", "kernel": {"name": "python3"}}
    )
    if server.ask("api/sessions", "POST", about, RIGHT).status != 201:
        log = server.log.read_text()
        server.stop()
        raise AssertionError(f"no kernel started: {log}")
    return server, listen


def _share(server, listen, clients):
    """Percent of a core that the server's process uses while so many listen."""
    leave = threading.Event()
    heard = [0] * clients
    threads = [
        threading.Thread(target=listen, args=(server, leave, heard, number))
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    time.sleep(3)  # all are in, and the first sample is behind us
    before, began = _cpu_s(server), time.monotonic()
    before_heard = sum(heard)
    time.sleep(WINDOW_S)
    share = 100 * (_cpu_s(server) - before) / (time.monotonic() - began)
    told = sum(heard) - before_heard
    leave.set()
    for thread in threads:
        thread.join()
    if told < clients * (WINDOW_S - 2):
        raise RuntimeError(f"{clients} clients heard only {told} answers in {WINDOW_S} s")
    time.sleep(1.5)  # the last sample of a client that left
    return share


def _cpu_s(server):
    # Its CPU time in ns; clock_getcpuclockid(3) makes the same number of a process id.
    return time.clock_gettime((~server.process.pid << 3) | 2)


def _workbench(server, leave, heard, number):
    _listen(server.open(RIGHT), leave, heard, number)


def _nvdashboard(server, leave, heard, number):
    address = f"ws://127.0.0.1:{server.port}{BASE}nvdashboard/"
    header = [f"Authorization: token {TOKEN}"]
    names = ["cpu_resource"]
    if _has_gpu(server):
        names += ["gpu_utilization", "gpu_usage", "gpu_resource", "pci_stats", "nvlink_throughput"]
    others = [
        websocket.create_connection(address + name, header=header, suppress_origin=True)
        for name in names
    ]
    threads = [threading.Thread(target=_listen, args=(one, leave, [0], 0)) for one in others[1:]]
    for thread in threads:
        thread.start()
    _listen(others[0], leave, heard, number)
    for thread in threads:
        thread.join()


def _listen(socket, leave, heard, number):
    socket.settimeout(10)
    while not leave.is_set() and socket.recv():
        heard[number] += 1
    socket.close()


def _resource_usage(server, leave, heard, number):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    while not leave.is_set():
        began = time.monotonic()
        connection.request("GET", BASE + "api/metrics/v1", headers=RIGHT)
        assert "rss" in json.loads(connection.getresponse().read())
        heard[number] += 1
        leave.wait(max(0, 1 - (time.monotonic() - began)))
    connection.close()


def _has_gpu(server):
    answer = server.ask("nvdashboard/accelerators/check", headers=RIGHT)
    return json.loads(answer.body)["has_gpu"]


def _tell_what(servers):
    socket = servers["workbench"][0].open(RIGHT)
    sample = json.loads(socket.recv())
    socket.close()
    parts = {name: len(sample[name]) for name in ("gpus", "nics", "processes") if name in sample}
    print(
        "each sample of ours: CPU, memory,", ", ".join(f"{n} {name}" for name, n in parts.items())
    )
    if "jupyterlab-nvdashboard" in servers and not _has_gpu(servers["jupyterlab-nvdashboard"][0]):
        print("jupyterlab-nvdashboard finds no GPU: it gives CPU, memory, disk and network only")
