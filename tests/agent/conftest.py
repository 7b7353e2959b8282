"""Fixtures of the tests of agents."""

import pytest

from workbench.timings import Timings


@pytest.fixture
def timings():
    """Timings that listen, without a cluster."""
    one = Timings()
    one.listen()
    yield one
    one.close()
