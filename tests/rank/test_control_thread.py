"""What the control thread does while the main thread changes the same things."""

import pytest

from workbench.rank.backends.backend import RingNotFormed
from workbench.rank.backends.ddp import DDPBackend
from workbench.rank.recording.recorder import Recorder
from workbench.rank.sampler import LineSampler
from workbench.wire.sample_messages import LineSamplesRequest

ENVIRONMENT = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
"""Nothing listens there."""


@pytest.fixture
def recorder():
    return Recorder(lambda _: True, lambda _: None)


@pytest.fixture
def backend(recorder, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return DDPBackend(recorder, lambda _: None)


class DestroyedGroup:
    """A process group whose attributes raise an error since it was destroyed."""

    _device_types = ()
    group_name = "destroyed"

    def _get_backend(self, device):
        raise RuntimeError(f"no backend for {device}")

    def _get_sequence_number_for_group(self):
        return 3

    def size(self):
        raise ValueError("Default process group has not been initialized")


class GroupOfTwo(DestroyedGroup):
    """A process group that PyTorch does not list any more; its ranks are a KeyError."""

    group_name = "two"

    def size(self):
        return 2


def test_a_group_that_is_destroyed_meanwhile_is_not_reported(backend, monkeypatch):
    """The state of the rank is sent, without that group or without its ranks."""
    groups = {"destroyed": DestroyedGroup(), "two": GroupOfTwo()}
    monkeypatch.setattr(backend._groups, "names", lambda: groups)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    pending = backend.pending()
    assert list(pending.submitted.values()) == [3]
    assert backend._recorder.members == {}


@pytest.mark.parametrize("ring", ["127.0.0.1:9", ""])
def test_a_ring_that_is_aborted_just_before_it_is_formed(backend, monkeypatch, ring):
    """It is not formed, although no socket existed that could be shut down."""
    form = backend._groups.form

    def aborted(*given):
        backend.abort_init(ring)
        return form(*given)

    monkeypatch.setattr(backend._groups, "form", aborted)
    with pytest.raises(RingNotFormed, match="asked to stop"):
        backend.init_ring(ENVIRONMENT)


def test_a_ring_is_formed_after_another_one_was_aborted(backend, monkeypatch):
    """The message about the other ring is late."""
    backend.abort_init("127.0.0.1:10")
    with pytest.raises(RingNotFormed, match="refused"):
        backend.init_ring(ENVIRONMENT)


def test_a_cell_ends_although_its_sampler_could_not_start(recorder, monkeypatch):
    """The process has no memory for another thread."""

    def start(_):
        raise RuntimeError("can't start new thread")

    sampler = LineSampler(recorder, lambda _: None)
    monkeypatch.setattr("threading.Thread.start", start)
    with pytest.raises(RuntimeError):
        sampler.ask(LineSamplesRequest(1.0), 1)
    sampler.end_cell()
