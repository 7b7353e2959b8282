"""While recording is off nothing is kept, and while it is on only so much."""

import time

import pytest
import torch
import torch.distributed as dist
from clusters import SHARED_MODEL, quiet

from workbench.rank.backends.torch_calls import TorchCalls
from workbench.rank.backends.torch_operations import METHODS, measure
from workbench.rank.recording import collectives
from workbench.rank.recording.collectives import Operation, Reported
from workbench.rank.recording.recorder import Recorder


@pytest.fixture
def switched(clean_cluster):
    """The cluster without what earlier tests have left; recording is on again after the test."""
    yield clean_cluster
    clean_cluster.recording = True


DDP = (
    SHARED_MODEL
    + """
import gc, weakref
inputs = torch.randn(64, 32)
def step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
class State: pass
def hook(state, bucket):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    return default_hooks.allreduce_hook(None, bucket)
def ends():
    "Whether the state of a model's own hook is freed with the model."
    model, state = DistributedDataParallel(net()), State()
    model.register_comm_hook(state, hook)
    step(model)
    here = weakref.ref(model), weakref.ref(state)
    del model, state
    gc.collect()
    return [one() is None for one in here]
"""
)


def test_a_hook_of_the_user_ends_with_its_model(switched):
    """Registered while recording is on, off, and on again, with an earlier model and without."""
    quiet(switched, DDP)
    assert quiet(switched, "ends()").values == {0: [True, True], 1: [True, True]}
    quiet(switched, "earlier = DistributedDataParallel(net()); step(earlier)")
    for on in (False, True, False):
        switched.recording = on
        assert quiet(switched, "ends()").values == {0: [True, True], 1: [True, True]}
        assert quiet(switched, "ends()").values == {0: [True, True], 1: [True, True]}
    kept = """
from workbench.rank import session
[len(one._models) for one in session._session.hooks if hasattr(one, "_models")]
"""
    assert quiet(switched, kept).values == {0: [1], 1: [1]}
    quiet(switched, "del earlier; gc.collect()")
    assert quiet(switched, kept).values == {0: [0], 1: [0]}


def test_collectives_while_recording_is_off(switched):
    """A function that a cell has replaced cannot be restored; what it reports is not kept."""
    quiet(
        switched,
        SHARED_MODEL
        + "from workbench.rank import session\n"
        + "usual = dist.ProcessGroup.broadcast\n"
        + "dist.ProcessGroup.broadcast = lambda *given: usual(*given)\n",
    )
    switched.recording = False
    count = """
for number in range(50):
    dist.broadcast(torch.ones(2), 0, async_op=number % 2 > 0)
time.sleep(0.1)
hooks = session._session.hooks
(len(session._session.recorder.reported.take(1 << 62).operations),
 max(len(one._calls.pending) for one in hooks if hasattr(one, "_calls")))
"""
    assert quiet(switched, count).values == {0: (0, 0), 1: (0, 0)}
    quiet(switched, "dist.ProcessGroup.broadcast = usual")


def test_reported_collectives_that_nobody_takes():
    """The newest are kept, and the others counted as lost."""
    one, reported = Operation("a", 4, 1), Reported()
    for moment in range(collectives.LIMIT + 10):
        reported.add(one, moment, moment + 1)
    found = reported.take(1 << 62)
    assert found.times[0].tolist() == list(range(10, collectives.LIMIT + 10))
    assert reported.lost == 10
    assert reported.take(1 << 62).operations == ()


def test_a_recorder_that_is_off_keeps_nothing():
    """It is empty when recording is on again."""
    recorder = Recorder(lambda handle: True, lambda recorded: None)
    recorder.on = False
    recorder.reported.add(Operation("a", 4, 1), 1, 2)
    recorder.on = True
    assert recorder.reported.take(1 << 62).operations == ()
    assert recorder.reported.lost == 0


class Unknown:
    """A Work without a future, as of a send with Gloo: it has finished when the wait returns."""

    def get_future(self):
        raise RuntimeError("not implemented")


def test_collectives_for_which_nobody_waits(tmp_path):
    """Those that are given up are counted as lost, once; those that were reported are not."""
    calls = TorchCalls(recorder := Recorder(lambda handle: True, lambda recorded: None))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ring", rank=0, world_size=1)
    works = [Unknown() for _ in range(4097)]

    def submit(work):
        sent, now = torch.ones(1), time.perf_counter_ns()
        calls.submitted(
            METHODS["send"], dist.group.WORLD, sent, measure(sent), work, now, 1, waits=False
        )
        return calls.pending[id(work)]

    try:
        submit(works[0]).finish()
        submit(works[0])
        assert recorder.reported.lost == 0
        submit(works[0])  # a later one with the same id
        assert recorder.reported.lost == 1
        for work in works[1:]:
            submit(work)
        assert recorder.reported.lost == 1 + 4096
        assert len(calls.pending) == 1
    finally:
        dist.destroy_process_group()


class Known:
    """A Work whose future the test finishes."""

    def __init__(self):
        self.future = torch.futures.Future()

    def get_future(self):
        return self.future


def test_a_later_collective_with_the_same_id(tmp_path):
    """Of the earlier one only the future is kept, as by a list of futures: it is reported."""
    calls = TorchCalls(recorder := Recorder(lambda handle: True, lambda recorded: None))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ring", rank=0, world_size=1)
    work, futures = Known(), []
    try:
        for _ in range(3):
            work.future = torch.futures.Future()
            futures.append(work.future)
            sent = [torch.ones(1)]
            calls.submitted(
                METHODS["allreduce"], dist.group.WORLD, sent, measure(sent), work, 1, 1, waits=False
            )
        for future in futures:
            future.set_result(None)
        assert len(recorder.reported.take(1 << 62).operations) == 3
        assert recorder.reported.lost == 0
        assert not calls.pending
    finally:
        dist.destroy_process_group()


def test_several_kinds_that_are_submitted_together_without_a_future(tmp_path):
    """All are reported when the wait for them returns."""
    calls = TorchCalls(recorder := Recorder(lambda handle: True, lambda recorded: None))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ring", rank=0, world_size=1)
    work, sent = Unknown(), [torch.ones(1)]
    try:
        group = dist.group.WORLD
        together = [
            calls.call(METHODS[name], group, measure(sent), 1, 1) for name in ("send", "broadcast")
        ]
        calls.coalesced(together, work)
        (kept,) = calls.pending.values()
        calls.finish(id(work), kept)
        kinds = {one.kind for one in recorder.reported.take(1 << 62).operations}
        assert kinds == {"send", "broadcast"}
        assert recorder.reported.lost == 0
    finally:
        dist.destroy_process_group()
