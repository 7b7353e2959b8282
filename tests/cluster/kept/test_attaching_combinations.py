"""A kept cluster is found by the next kernel, over each backend and each launcher."""

import pytest
from clusters import CELL_S, gone, quiet
from combinations import BACKENDS, Combination, parametrize
from kept_clusters import IN_A_CELL, KILLED, kernel

from workbench.errors import RanksFailed


def pytest_generate_tests(metafunc):
    """Run each test over the combinations; `test_attaching.py` has Horovod on this machine."""
    parametrize(metafunc, {"ddp-local", "horovod-ssh"})


@pytest.fixture(scope="module")
def case(request):
    """A backend and a launcher, in whose environment kernels and ranks start."""
    with request.param.options() as options:
        yield request.param, ", ".join(f"{name}={value!r}" for name, value in options.items())


def test_the_next_kernel_finds_it(attach, case):
    """Ranks, variables and models are as the earlier kernel left them; failures are handled."""
    combination, options = case
    script = combination.backend.cells + "make(); train(5)"
    name, pids = kernel(KILLED, f"keep='60s', {options}", script)
    cluster = attach()
    assert (cluster.name, cluster.state) == (name, "ready")
    assert [info.pid for info in cluster.ranks] == pids
    assert cluster["kept"] == [0, 10, 20]
    assert len(cluster.timings) == 15
    with pytest.raises(RanksFailed, match="boom"):
        quiet(cluster, "if rank: raise ValueError('boom')\ntotal()", timeout=CELL_S)
    values = quiet(cluster, "train(2)", timeout=CELL_S).values
    assert values[0] == values[1] == values[2]
    assert len(cluster.timings) == 21
    cluster.resize(2)
    assert quiet(cluster, "train(1); total()", timeout=CELL_S).values == {0: 2.0, 1: 2.0}
    cluster.stop()
    assert gone(pids)


@pytest.mark.soak
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=str)
def test_a_rank_that_another_has_left_alone_is_freed(attach, capsys, backend):
    """Rank 1 has ended the cell when the kernel dies; nobody else is there to free rank 0."""
    source = "\nif rank == 0: time.sleep(1); total('alone')"
    with Combination(backend, "local").options():
        arguments = f"n=2, keep='60s', backend={backend.name!r}"
        kernel(IN_A_CELL.format(source=source), arguments, f"{backend.cells}make()")
        cluster = attach()
        assert "rank 0 waited for a rank that has ended the cell" in capsys.readouterr().out
        assert cluster["kept"] == [0, 10]
        values = quiet(cluster, "train(2)", timeout=CELL_S).values
        assert values[0] == values[1]
        cluster.stop()
