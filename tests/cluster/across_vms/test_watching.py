"""The panel receives a cluster's VMs: a real kernel, its comm, and agents over ssh."""

import time

import pytest
from kernel_page import Page
from kernels import start_kernel
from vm_sets import vms

LAPSE_S = 2.0  # the panel's own twelve seconds would be twelve seconds of test
THREADS = "[t.name for t in threading.enumerate()].count('workbench-vms')"


@pytest.fixture(scope="module")
def own_machines():
    """Two VMs, one of which will lose its network."""
    with vms(2) as machines:
        yield machines


@pytest.fixture(scope="module")
def kernel_page(own_machines):
    """A page that watches a kernel whose cluster has a rank on each VM."""
    manager, client = start_kernel()
    try:
        page = Page(client)
        page.use_subshell()
        page.run(
            "%load_ext workbench\nimport threading, time\nfrom workbench.widgets import vm_watch\n"
            f"from workbench.cluster import registry\nvm_watch.LAPSE_S = {LAPSE_S}\n"
            f"registry.start(hosts='vm1,vm2', ssh_config={str(own_machines.ssh_config)!r})"
        )
        assert not failed(page)
        yield page
        page.run("registry.stop()")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.fixture
def page(kernel_page):
    """The same, watching; it hears of both VMs."""
    kernel_page.heard.clear()
    kernel_page.outputs.clear()
    kernel_page.ask("watch", on=True)
    heard(kernel_page, "samples", lambda told: known(told) == ["vm1", "vm2"])
    yield kernel_page
    kernel_page.ask("watch", on=False)


def heard(page, kind, fits=lambda _: True):
    """Wait for a message and return it; the page renews its watch meanwhile, as pages do."""
    renewed = [time.monotonic()]

    def there():
        if time.monotonic() - renewed[0] > LAPSE_S / 3:
            page.ask("watch", on=True)
            renewed[0] = time.monotonic()
        return [one for one in page.heard if one["type"] == kind and fits(one)]

    page.wait(lambda: bool(there()), kind)
    return there()[-1]


def count(page, kind):
    """How many messages of a kind came."""
    return sum(one["type"] == kind for one in page.heard)


def known(message):
    """The VMs whose rates are known."""
    rates = {
        name: sample["cpu"]["percent"]
        for name, sample in message["samples"].items()
        if "unknown" not in sample
    }
    return [name for name, percent in rates.items() if not isinstance(percent, dict)]


def failed(page):
    """Return the errors of cells."""
    return [one for one in page.outputs if "ename" in one]


def test_each_vm_is_reported_with_what_it_has_and_uses(page):
    """VMs in the cluster's order, none of them this machine, each with a sample a second."""
    told = heard(page, "vms")
    assert [(vm["name"], vm["local"]) for vm in told["vms"]] == [("vm1", False), ("vm2", False)]
    assert [vm["snapshot"]["host"]["hostname"] for vm in told["vms"]] == ["vm1", "vm2"]
    sample = heard(page, "samples")["samples"]["vm2"]
    assert [nic["name"] for nic in sample["nics"]] == ["eth0"]


def test_a_page_that_comes_later_gets_the_vms_as_well(page):
    """The page's first request, a refresh, returns the VMs again."""
    page.heard.clear()
    page.ask("refresh")
    assert len(heard(page, "vms")["vms"]) == 2


@pytest.mark.soak
def test_samples_come_while_a_cell_runs(page, tmp_path):
    """They take no output from it, and do not lapse: a page reloaded meanwhile cannot ask."""
    end = tmp_path / "end"
    cell = page.begin(
        f"import pathlib\nend = pathlib.Path({str(end)!r})\n"
        "def talk():\n    while not end.exists():\n        time.sleep(0.1)\n    print('late')\n"
        "thread = threading.Thread(target=talk)\nthread.start()\nprint('begun')\nthread.join()"
    )
    page.wait(lambda: bool(page.outputs), "the start of the cell")
    page.heard.clear()
    page.wait(lambda: count(page, "samples") > LAPSE_S + 1, "samples without a request")
    described, began = count(page, "vms"), time.monotonic()
    page.wait(lambda: count(page, "vms") > described + 1, "descriptions without a request")
    assert time.monotonic() - began < 9
    assert cell not in page.ended
    page.ask("watch", on=True)
    heard(page, "samples")
    end.touch()
    page.wait(lambda: cell in page.ended, "the end of the cell")
    assert "".join(one["text"] for one in page.outputs if one["cell"] == cell) == "begun\nlate\n"


@pytest.mark.soak
def test_a_watch_that_nobody_renews_ends(page):
    """No thread remains, and no further message is sent."""
    told = 0
    while told < count(page, "samples"):  # each lap longer than a tick
        told = count(page, "samples")
        until = time.monotonic() + 1.8
        page.wait(lambda: time.monotonic() > until, "a while")  # noqa: B023 - called in here only
    page.run(f"assert {THREADS} == 0")
    assert not failed(page)


def test_a_watch_that_is_given_up_ends_at_once(page):
    """No thread is left; the next watch begins with the VMs again."""
    page.ask("watch", on=False)
    page.execute_aside("off = True")
    page.run(f"while 'off' not in globals() or {THREADS}:\n    time.sleep(0.02)")
    page.heard.clear()
    page.ask("watch", on=True)
    assert len(heard(page, "vms")["vms"]) == 2


@pytest.mark.soak
def test_a_vm_that_is_slow(page):
    """Nobody waits for it: the other is reported each second, and this one once it answers."""
    page.run("import os, signal\nslow = registry.current().agents[1].hello.pid")
    page.run("os.kill(slow, signal.SIGSTOP)")
    try:
        page.heard.clear()
        heard(page, "samples", lambda told: "unknown" in told["samples"]["vm2"])
        page.heard.clear()
        heard(page, "samples", lambda _: count(page, "samples") == 3)
        assert [known(told) for told in page.heard if told["type"] == "samples"] == [["vm1"]] * 3
    finally:
        page.run("os.kill(slow, signal.SIGCONT)")
    heard(page, "samples", lambda told: known(told) == ["vm1", "vm2"])


@pytest.mark.soak
def test_a_cluster_that_is_stopped_and_another_one(page):
    """The VMs go with the one and come with the other; a rank here is on this machine."""
    page.heard.clear()
    page.run("before = registry.current()\nregistry.set_current(None)")
    # one about the VMs may have been on its way
    gone = heard(page, "vms", lambda one: not one["vms"])
    assert gone == {"type": "vms", "vms": [], "findings": [], "weakest": None}
    page.heard.clear()
    page.run("registry.start(1)")
    (vm,) = heard(page, "vms", lambda told: told["vms"])["vms"]
    assert vm["local"]
    assert count(page, "samples") == 0  # the Jupyter server samples this one
    page.heard.clear()
    page.run("registry.stop()")
    assert heard(page, "vms")["vms"] == []
    page.run("registry.set_current(before)")
    assert not failed(page)


@pytest.mark.soak
def test_a_vm_that_is_lost(page, own_machines):
    """It is reported at once as not answering, then why; the other continues each second."""
    own_machines.cut("vm2")
    told = heard(page, "samples", lambda told: "unknown" in told["samples"]["vm2"])
    assert "vm2 has not answered for" in told["samples"]["vm2"]["unknown"]
    assert known(told) == ["vm1"]
    lost = heard(page, "vms", lambda told: "unknown" in told["vms"][1]["snapshot"])
    assert "vm2 does not answer any more" in lost["vms"][1]["snapshot"]["unknown"]
    assert lost["vms"][0]["snapshot"]["host"]["hostname"] == "vm1"
    page.heard.clear()
    page.run("answered = registry.current().samples()")
    page.run("assert 'does not answer' in answered['vm2'].reason, answered")
    page.run("assert answered['vm1'].cpu is not None")
    assert not failed(page)
    own_machines.mend("vm2")
    page.run("registry.current().restart()")
    assert not failed(page)
    heard(page, "vms", lambda told: "unknown" not in told["vms"][1]["snapshot"])
    heard(page, "samples", lambda told: known(told) == ["vm1", "vm2"])
