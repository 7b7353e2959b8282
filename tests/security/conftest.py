"""Running clusters with planted secrets, and those who must not reach them."""

from __future__ import annotations

import os

import pytest
from planted import Planted, stranger
from vm_sets import vms

from workbench.testbed import why_not

NOBODY = 65534


@pytest.fixture(scope="session")
def planted():
    """A cluster on this machine."""
    running = Planted()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def second_user():
    """Probe as the user nobody."""
    if os.getuid() != 0:
        pytest.skip("becoming a second user needs root")
    return lambda **given: stranger(given, NOBODY)


@pytest.fixture(scope="session")
def across():
    """A cluster on two VMs, and a third one in their network: (running, VMs)."""
    if why_not() is not None:
        pytest.skip(str(why_not()))
    with vms(3) as machines:
        running = Planted("vm1:1,vm2:1", str(machines.ssh_config))
        try:
            yield running, machines
        finally:
            running.stop()
