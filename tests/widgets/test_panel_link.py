"""The sidebar panel's link, in a real kernel and over its real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from kernel_page import Page
from kernels import start_kernel

# Replaces a cluster without processes: the link shows what it is given.
STAND_IN = """
import threading, time
from dataclasses import dataclass
from types import SimpleNamespace
import workbench.cluster.cluster as home
from workbench.cluster import registry
from workbench.errors import StartFailed

@dataclass
class Rank:
    rank: int
    vm: str = "vm1"
    pid: int = 4711
    gpu: str = "CPU"
    nic: str = "lo"
    state: str = "ready"

class StandIn:
    agents, recording, timings, fabric = (), True, (), None
    options = SimpleNamespace(keep_s=None)
    def __init__(self, n):
        self.n, self.name, self.state, self.message, self.ranks = n, "stand-in", "stopped", "", []
    def start(self):
        if self.n == 13:
            raise StartFailed("13 ranks were asked for, 12 came up")
        if self.n == 14:
            raise OSError("no space left on device")
        self._to("starting")
        self.ranks = [Rank(rank) for rank in range(self.n)]
        self._to("ready")
        return self
    def stop(self):
        self._to("stopped")
    def subscribe(self, listener):
        self._changed = listener
        return lambda: None
    def _to(self, state):
        self.state = state
        self._changed()

home.Cluster = StandIn
"""


@pytest.fixture(scope="module")
def client() -> Iterator[BlockingKernelClient]:
    """A kernel's client, its extension loaded."""
    manager, client = start_kernel()
    try:
        page = Page(client)
        page.run("%load_ext workbench")
        page.run(STAND_IN)
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.fixture
def page(client: BlockingKernelClient) -> Page:
    """A page that watches a kernel without a cluster."""
    page = Page(client)
    page.run("registry.set_current(None)")
    page.heard.clear()
    return page


def test_a_page_that_asks_learns_that_there_is_no_cluster(page: Page) -> None:
    """Before any start, the state is null, not an error."""
    page.ask("refresh")
    page.wait(lambda: bool(page.heard), "a state")
    assert page.state() is None


def test_start_reports_each_state_and_then_the_ranks(page: Page) -> None:
    """A start from the panel ends with a row for each rank."""
    page.ask("start", options={"n": 2})
    cluster = page.wait_for_state("ready")
    assert cluster["n"] == 2
    assert cluster["ranks"][1] == {
        "rank": 1, "vm": "vm1", "pid": 4711, "gpu": "CPU", "nic": "lo", "state": "ready",
    }  # fmt: skip


def test_stop_ends_what_a_cell_started(page: Page) -> None:
    """The panel and the magics mean the same cluster."""
    page.run("registry.start(3)")
    page.wait_for_state("ready")
    page.ask("stop")
    assert page.wait_for_state("stopped")["n"] == 3


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"kind": "start", "options": {"n": 13}}, "13 ranks were asked for, 12 came up"),
        ({"kind": "start", "options": {"n": 14}}, "OSError: no space left on device"),
        ({"kind": "stop"}, "No cluster runs"),
        ({"kind": "dance"}, "'dance'"),
    ],
)
def test_a_request_that_fails_says_why(page: Page, request_: dict[str, Any], says: str) -> None:
    """Every failure reaches the person who clicked."""
    page.ask(**request_)
    page.wait(lambda: any(one["type"] == "error" for one in page.heard), "an error")
    error = next(one for one in page.heard if one["type"] == "error")
    assert says in error["message"]


def test_a_page_that_watches_learns_that_there_are_no_vms(page: Page) -> None:
    """Once, and again with each page that comes; samples there are none."""

    def described() -> list[dict[str, Any]]:
        # a state may still arrive from the cell before
        return [one for one in page.heard if one["type"] != "state"]

    page.ask("watch", on=True)
    page.ask("watch", on=True)
    page.wait(lambda: bool(described()), "the VMs")
    assert described() == [{"type": "vms", "vms": [], "findings": [], "weakest": None}]
    page.heard.clear()
    page.ask("refresh")
    page.wait(lambda: {one["type"] for one in page.heard} == {"state", "vms"}, "both")
    assert described() == [{"type": "vms", "vms": [], "findings": [], "weakest": None}]
    page.ask("watch", on=False)


def test_stop_reaches_a_kernel_that_a_cell_blocks(page: Page) -> None:
    """The cell ends only because of the request: it waits for it, after publishing itself."""
    page.use_subshell()
    page.run("cluster = registry.start(2)")
    cell = page.begin(
        "threading.Thread(target=registry.changed).start()\n"
        "while cluster.state != 'stopped':\n    time.sleep(0.01)"
    )
    page.heard.clear()
    page.wait_for_state("ready")  # sent from the cell's thread
    assert cell not in page.ended
    page.ask("stop")
    page.wait_for_state("stopped")
    page.wait(lambda: cell in page.ended, "the end of the cell")


def test_what_a_thread_of_the_cell_prints_after_a_request_stays_in_the_cell(page: Page) -> None:
    """A request in the middle of a cell takes no output away from it."""
    page.use_subshell()
    page.run("cluster = registry.start(2)")
    cell = page.begin(
        "def late():\n"
        "    while cluster.state != 'stopped':\n        time.sleep(0.01)\n"
        "    time.sleep(0.2)\n"
        "    print('printed late')\n"
        "print('begun')\n"
        "thread = threading.Thread(target=late)\nthread.start()\nthread.join()"
    )
    page.wait(lambda: bool(page.outputs), "the start of the cell")
    page.ask("stop")
    page.wait(lambda: cell in page.ended, "the end of the cell")
    printed = "".join(one["text"] for one in page.outputs if one["cell"] == cell)
    assert printed == "begun\nprinted late\n"


def test_the_state_comes_again_while_a_cell_runs(page: Page) -> None:
    """A page that was reloaded in the middle of a cell can only listen; it hears all the same."""
    page.run("cluster = registry.start(2)")
    cell = page.begin("while registry.current() is cluster:\n    time.sleep(0.01)")
    page.heard.clear()
    page.wait(lambda: len(page.heard) >= 3, "states without a change")
    assert cell not in page.ended
    page.use_subshell()
    page.execute_aside("registry.set_current(None)")
    page.wait(lambda: cell in page.ended, "the end of the cell")


def test_loading_the_extension_again_changes_nothing(page: Page) -> None:
    """One link per kernel: a second load does not make every state come twice."""
    page.run("%load_ext workbench\n%reload_ext workbench")
    page.run("[t.name for t in threading.enumerate()].count('workbench-panel') == 1 or 1 / 0")
    assert not any("ename" in one for one in page.outputs)
