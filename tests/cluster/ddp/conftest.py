"""Three ranks for all tests of this folder."""

import pytest
from clusters import quiet
from timers import FAR_S, eventually

import workbench as wb

from .cells import SETUP, SUM


@pytest.fixture(scope="package")
def ddp():
    """Three ranks for all of these tests."""
    with wb.Cluster(n=3, backend="ddp", hang_after_s=1) as found:
        yield found


@pytest.fixture
def ranks(ddp):
    """The same, with `kept` on each rank; the ring works afterwards."""
    if ddp.state != "ready":
        ddp.restart()
    quiet(ddp, SETUP, timeout=FAR_S)
    yield ddp
    assert eventually(lambda: ddp.state == "ready"), ddp.message
    found = quiet(ddp, SUM, timeout=FAR_S).values
    n = ddp.n
    assert {rank: total for rank, (_, total) in found.items()} == dict.fromkeys(range(n), float(n))
