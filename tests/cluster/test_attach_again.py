"""Attaching to a kept cluster in the kernel that is attached to it already."""

import pytest
from clusters import quiet

import workbench as wb
from workbench.cluster import registry
from workbench.errors import ClusterError, NoCluster


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A kept cluster of this kernel, with a variable on its rank."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    with wb.Cluster(n=1, keep="600s") as cluster:
        quiet(cluster, "x = 7")
        yield cluster


@pytest.mark.soak
@pytest.mark.parametrize("named", [False, True])
def test_this_kernel_has_it_already(kept, named):
    """The advice is not to shut this kernel down, and the cluster goes on."""
    with pytest.raises(ClusterError) as refused:
        wb.Cluster.attach(kept.name if named else None)
    text = str(refused.value)
    assert f"Cannot attach to {kept.name}: this kernel is attached already" in text
    assert "shut" not in text
    assert (kept.state, kept["x"]) == ("ready", [7])
    kept.stop()
    with pytest.raises(NoCluster):
        wb.Cluster.attach()


def test_this_notebook_has_it_already(kept):
    """`%cluster attach` does not advise to stop what it is asked for; a name can be given again."""
    registry.set_current(kept)
    try:
        assert registry.attach(kept.name) is kept
        with pytest.raises(ClusterError, match="this notebook is attached already") as refused:
            registry.attach(None)
        assert "stop" not in str(refused.value)
        with pytest.raises(ClusterError, match=r"Cannot attach: .* Stop it with %cluster stop"):
            registry.attach("local-other")
    finally:
        registry.set_current(None)
    assert kept["x"] == [7]
