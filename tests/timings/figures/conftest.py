"""Trainings of real ranks."""

import pytest
from true_figures import BEGIN

from workbench.cluster import TextSink


@pytest.fixture
def trained(cluster):
    """Runs a cell on both ranks; returns its values, and the rows of its iterations."""

    def run(source):
        rows = cluster.timings.rows()
        before = rows["iteration"].max(initial=-1)
        values = cluster.run(BEGIN + source, sink=TextSink()).values
        rows = cluster.timings.rows()
        return values, rows[rows["iteration"] > before]

    return run
