"""Cells that train with TensorFlow; needs `workbench build-horovod --with tensorflow`.

`make` does not install TensorFlow, which is larger than everything else.
"""

import signal
import textwrap
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from clusters import Cell, quiet
from timers import FAR_S

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import RanksFailed


def missing():
    """Why cells cannot use TensorFlow here; empty if they can."""
    horovod = find_spec("horovod")
    if find_spec("tensorflow") is None:
        return "TensorFlow is not installed here"
    if horovod is None or not list(Path(horovod.origin).parent.glob("tensorflow/mpi_lib*")):
        return "Horovod is built without it here: `workbench build-horovod --with tensorflow`"
    return ""


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]
BYTES = 8 * 2 * 4
"""What `train` reduces."""
IMPORTS = """
import os, time
import horovod.tensorflow as hvt
import keras, numpy as np
import tensorflow as tf
from workbench.tensorflow import DistributedOptimizer
w = tf.Variable(tf.ones((8, 2)))
plain = keras.optimizers.SGD(0.1)
def train(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w) ** 2)
    tape = hvt.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, [w])
    plain.apply_gradients(zip(gradients, [w]))
compiled = tf.function(train)
together = tf.function(lambda x: hvt.allreduce(x, op=hvt.Sum, name="together"))
x = tf.ones((4, 8)) * (rank + 1)
rng = np.random.default_rng(rank)
X = rng.normal(size=(64, 8)).astype("f")
def model(optimizer):
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    made.compile(optimizer=optimizer, loss="mse")
    return made
kept = rank
"""


@pytest.fixture(scope="module")
def shared():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
        with wb.Cluster(n=2) as running:
            quiet(running, IMPORTS, timeout=FAR_S)
            yield running


@pytest.fixture
def two(shared):
    """The same cluster, with its variables."""
    if shared.state != "ready":
        shared.restart()
    if None in quiet(shared, "globals().get('kept')", timeout=FAR_S).values.values():
        quiet(shared, IMPORTS, timeout=FAR_S)
    return shared


def recorded(cluster, source):
    """Run a cell; return its iterations and its collectives."""
    before = len(cluster.timings.to_frame())
    quiet(cluster, source, timeout=FAR_S)
    cell = cluster.timings.collectives()
    return cluster.timings.to_frame()[before:], cell[cell["cell"] == cell["cell"].max()]


def same(values):
    """Whether all ranks have the same value."""
    first, *others = values.values()
    return all(other == first for other in others)


def test_both_frameworks_use_one_ring(two):
    """The ops of TensorFlow have the ranks of PyTorch's, and a ring formed in a cell is shared."""
    source = "import torch\nhvt.size(), float(hvt.allreduce(tf.ones(()), op=hvt.Sum)), float("
    source += "hvd.allreduce(torch.ones(1), op=hvd.Sum))"
    for before in ("", "hvt.shutdown()\nhvt.init()\n"):
        values = quiet(two, before + source, timeout=FAR_S).values
        assert values == dict.fromkeys((0, 1), (2, 2.0, 2.0))


def test_a_loop_has_phases_and_collectives(two):
    """Eager code: the forward in the tape, its gradients, the wait, and the optimizer."""
    rows, collectives = recorded(two, "for _ in range(4): train(x)")
    assert len(rows) == 8
    for name in ("forward_us", "backward_us", "exposed_us", "optimizer_us"):
        assert (rows[name] > 0).all()
    assert (rows["bytes"] == BYTES).all()
    assert set(collectives["by"]) == {"optimizer"}
    assert set(collectives["library"]) == {"GLOO_ALLREDUCE"}


def test_a_compiled_step_is_an_iteration_of_unknown_phases(two):
    """Its duration and collectives are known, and its phases are not 0."""
    rows, collectives = recorded(
        two, "for _ in range(4): compiled(x)\nfor _ in range(3): together(x)"
    )
    assert len(rows) == 8
    assert (rows["iteration_us"] > 0).all()
    assert (rows["bytes"] == BYTES).all()
    for name in ("data_us", "forward_us", "backward_us", "exposed_us", "optimizer_us", "overlap"):
        assert np.isnan(rows[name]).all()
    assert (collectives["by"] == "optimizer").sum() == 8


def test_keras_averages_with_our_optimizer(two):
    """`fit` records its steps, and all ranks have the same weights; a saved model can be loaded."""
    source = """
    trained = model(DistributedOptimizer(keras.optimizers.Adam(0.01)))
    trained.fit(X, X.sum(1), batch_size=16, verbose=0)
    """
    rows, collectives = recorded(two, textwrap.dedent(source))
    assert len(rows) == 8
    assert set(collectives["by"]) == {"optimizer"}
    weights = "[one.numpy().tolist() for one in trained.trainable_variables]"
    assert same(quiet(two, weights, timeout=FAR_S).values)
    saved = "import tempfile\npath = tempfile.mkdtemp() + '/m.keras'\ntrained.save(path)\n"
    saved += "type(keras.models.load_model(path).optimizer) is keras.optimizers.Adam"
    assert quiet(two, saved, timeout=FAR_S).values == dict.fromkeys((0, 1), True)


def test_horovods_own_optimizer_says_that_it_does_not_average(two):
    """Its weights would differ between ranks without a word."""
    sink = TextSink()
    source = (
        "import horovod.tensorflow.keras as hk\nhk.DistributedOptimizer(keras.optimizers.SGD())"
    )
    two.run(source + "\nNone", sink=sink, timeout=FAR_S)
    said = [line for line in sink.text.splitlines() if "does not average" in line]
    assert len(said) == 1
    assert said[0].startswith("[ranks 0-1]")
    assert "from workbench.tensorflow import DistributedOptimizer" in said[0]


@pytest.mark.parametrize("wait", ["together(x)", "hvt.allreduce(x)"], ids=["compiled", "eager"])
def test_a_rank_that_waits_for_one_that_has_failed_is_freed(two, wait):
    """The error is shown, not that of the rank that waited, and variables are kept."""
    with pytest.raises(RanksFailed, match="boom") as caught:
        quiet(two, f"if rank: raise ValueError('boom')\n{wait}", timeout=FAR_S)
    assert set(caught.value.errors) == {1}
    assert quiet(two, "kept", timeout=FAR_S).values == {0: 0, 1: 1}
    assert same(quiet(two, "together(x).numpy().tolist()", timeout=FAR_S).values)


def test_a_rank_that_waits_can_be_interrupted(two):
    """Python's signal does not end an op: the ring does."""
    rank_1 = "    print('waits', flush=True)\n    together(x)"
    source = f"if rank:\n{rank_1}\nelse:\n    held()\n    time.sleep(100)"
    cell = Cell(two, source, "waits", two.interrupt)
    assert "interrupted" in cell.error
    assert quiet(two, "kept", timeout=FAR_S).values == {0: 0, 1: 1}


def test_a_killed_rank_is_replaced(two):
    """The other keeps its variables and its compiled functions."""
    with pytest.raises(RanksFailed):
        quiet(
            two, f"if rank: os.kill(os.getpid(), {int(signal.SIGKILL)})\ntogether(x)", timeout=FAR_S
        )
    two.restart()
    assert quiet(two, "globals().get('kept')", timeout=FAR_S).values == {0: 0, 1: None}
    quiet(
        two, "if rank:\n" + "".join(f"    {one}\n" for one in IMPORTS.splitlines()), timeout=FAR_S
    )
    assert same(quiet(two, "together(x).numpy().tolist()", timeout=FAR_S).values)


def test_strategies_find_the_ranks():
    """TF_CONFIG has an address of each rank, and a strategy over the ranks reduces."""
    source = """
    import json, os
    config = json.loads(os.environ["TF_CONFIG"])
    import tensorflow as tf
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    @tf.function
    def step():
        return strategy.reduce("SUM", strategy.run(lambda: tf.ones(())), axis=None)
    config["task"]["index"], len(set(config["cluster"]["worker"])), float(step())
    """
    with wb.Cluster(n=2, backend="ddp") as cluster:
        values = quiet(cluster, textwrap.dedent(source), timeout=FAR_S).values
    assert values == {rank: (rank, 2, 2.0) for rank in (0, 1)}
