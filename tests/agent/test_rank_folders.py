"""The folders of an agent's ranks: none stays behind."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from clusters import quiet
from timers import eventually

import workbench as wb
from workbench.agent.folder import claim, remove


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """What returns the folders of agents of this test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return lambda: set(tmp_path.glob("workbench-rank-*"))


def agent_of(cluster):
    return psutil.Process(cluster.ranks[0].pid).parent()


WORKERS = """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return torch.ones(4)
batches = iter(torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2))
next(batches)
"""


@pytest.mark.soak
def test_workers_leave_no_folder(monkeypatch):
    """A loader's iterator that is still in a variable when its rank is stopped or replaced."""
    # a socket's path has at most 107 bytes, which those of pytest's folders may exceed
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("TMPDIR", short)
        with wb.Cluster(n=2) as cluster:
            cluster.run(WORKERS)
            cluster.restart(ranks=[1])
            cluster.run(WORKERS)
        names = ("pymp-*", "workbench-rank-*")
        assert eventually(lambda: not any(list(Path(short).glob(name)) for name in names))


@pytest.mark.soak
def test_an_agent_that_was_killed_leaves_no_folder(folders):
    """Its ranks end, and the last of them removes the folder."""
    with wb.Cluster(n=2) as cluster:
        (folder,) = folders()
        agent_of(cluster).kill()
        assert eventually(lambda: not folder.exists())
    assert not folders()


@pytest.mark.soak
def test_folders_that_nobody_could_remove(folders):
    """If agent and ranks were killed together, the next agent removes the folder."""
    with wb.Cluster(n=1) as cluster:
        (folder,) = folders()
        rank = psutil.Process(cluster.ranks[0].pid)
        agent = agent_of(cluster)
        rank.suspend()
        agent.suspend()
        rank.kill()
        agent.kill()
        assert eventually(lambda: not rank.is_running() or rank.status() == "zombie")
    assert folder.exists()
    long_ago = time.time() - 600
    os.utime(folder / "lock", (long_ago, long_ago))
    with wb.Cluster(n=1) as used:
        assert not folder.exists()
        (other,) = folders()
        os.utime(other / "lock", (long_ago, long_ago))
        with wb.Cluster(n=1):
            assert other.exists()
        assert quiet(used, "1").values == {0: 1}
    assert not folders()


def test_a_folder_that_was_removed_in_part(tmp_path, monkeypatch):
    """Its lock file is removed last, so that the next agent removes the rest."""
    path = tmp_path / "workbench-rank-part"
    (path / "profile-0").mkdir(parents=True)
    claim(path)
    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", lambda *_, **__: None)
        remove(path)
    assert (path / "profile-0").exists()
    assert (path / "lock").exists()
    remove(path)
    assert not path.exists()


def test_a_folder_of_another_version_stays(folders, tmp_path):
    """A folder without a lock may be in use by an agent that makes none."""
    strange = tmp_path / "workbench-rank-strange"
    strange.mkdir()
    long_ago = time.time() - 600
    os.utime(strange, (long_ago, long_ago))
    with wb.Cluster(n=1):
        assert strange.exists()
