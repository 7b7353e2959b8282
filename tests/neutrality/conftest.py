"""Ranks with this package and without it."""

import pytest

from .ranks import ENVIRONMENT, CellRanks, PlainRanks


@pytest.fixture(scope="module")
def ranks(request, tmp_path_factory):
    """Plain processes and a cluster, of a backend and with a number of ranks."""
    backend, n = request.param
    plain = PlainRanks(backend, n, tmp_path_factory.mktemp("plain"))
    cells = CellRanks(backend, n)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in ENVIRONMENT.items():
            patch.setenv(variable, value)
        try:
            plain.start()  # while the cluster starts
            yield plain, cells
        finally:
            plain.close()
            cells.close()
