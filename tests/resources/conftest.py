"""Snapshots of machines with GPUs."""

import pytest
from fake_machine import snap


@pytest.fixture
def look(machine):
    """A snapshot of a machine whose GPUs are these."""
    return lambda nvml, **others: snap(machine, nvml, **others)
