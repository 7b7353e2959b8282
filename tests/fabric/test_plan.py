"""What a training costs before it runs, against figures worked out by hand."""

import json
import re
import subprocess
import sys

import pytest

import workbench as wb
from workbench.cli import main
from workbench.errors import UsageError
from workbench.fabric import ModelSize, fit, plan


def test_bert_large_on_25_gigabit_ethernet():
    """340 M parameters: 1.36 GB of gradients, 2.72 GB in the limit, 870 ms, 725 hours."""
    made = plan("340M", iterations=30_000, epochs=100, gbps=25, vms=2)
    assert made["gradients"].value == 1.36e9
    assert made["moved in the limit"].value == 2.72e9
    assert made["moved per iteration, 2 ranks"].value == 1.36e9
    assert str(made["communication in the limit"]) == "870 ms"
    total = made["communication in total, in the limit"]
    assert total.value / 3600 == pytest.approx(725.3, abs=0.1)
    assert str(total) == "725 h (30.2 days)"
    assert made.scaling[1].communication_s == pytest.approx(1.36e9 * 8 / 25e9)


def test_imagenet_takes_40_000_iterations():
    """1.28 million images at a batch of 32, on one rank; on four ranks a quarter."""
    made = plan("25.6M", samples="1.28M", batch=32, vms=4)
    assert made["iterations per epoch"].value == 40_000
    assert [row.iterations for row in made.scaling] == [40_000, 20_000, 13_334, 10_000]


def test_gpt_3_has_700_gb_of_gradients():
    """175 billion parameters of four bytes."""
    assert str(plan("175B")["gradients"]) == "700 GB"


def test_four_ranks_move_three_halves():
    """A ring of n ranks moves 2 (n - 1) / n times the gradients."""
    made = plan("340M", gbps=25, vms=4)
    assert made["moved per iteration, 4 ranks"].value == 1.5 * 1.36e9
    assert made.scaling[3].communication_s == pytest.approx(0.6528)


def test_latency_counts_once_per_step():
    """2 (n - 1) messages."""
    without, with_it = (plan("1M", gbps=10, latency_us=us).scaling for us in (0, 50))
    for n, (first, second) in enumerate(zip(without, with_it, strict=True), 1):
        assert second.communication_s - first.communication_s == pytest.approx(2 * (n - 1) * 50e-6)


def test_the_slowest_hop_limits_the_ring():
    """Within a VM the local rate counts, between VMs the smaller one."""
    made = plan("1M", gbps=10, ranks_per_vm=2, local_gbps=100, vms=2).scaling
    assert made[0].communication_s == pytest.approx(4e6 * 8 / 100e9)
    assert made[1].communication_s == pytest.approx(1.5 * 4e6 * 8 / 10e9)
    slow_inside = plan("1M", gbps=100, ranks_per_vm=2, local_gbps=10, vms=2).scaling
    assert slow_inside[1].communication_s == pytest.approx(1.5 * 4e6 * 8 / 10e9)


def test_what_is_not_given_is_not_known():
    """No rate, no time; a VM's own rate is not that of its link."""
    assert [row.communication_s for row in plan("1M").scaling] == [0, None, None, None]
    inside = plan("1M", gbps=10, ranks_per_vm=2, vms=2).scaling
    assert inside[0].communication_s is None
    assert inside[1].communication_s == pytest.approx(1.5 * 4e6 * 8 / 10e9)
    assert "Give gbps" in repr(plan("1M"))


def test_iterations_between_full_and_no_overlap():
    """The forward overlaps with nothing; efficiency is compute over the time without overlap."""
    alone, two = plan("340M", gbps=25, compute_ms=300, vms=2, samples=3_200, batch=32).scaling
    assert (alone.overlapped_s, alone.sequential_s, alone.efficiency) == (0.3, 0.3, 1)
    assert two.sequential_s == pytest.approx(0.3 + 0.4352)
    assert two.overlapped_s == pytest.approx(0.1 + 0.4352)
    assert two.efficiency == pytest.approx(0.3 / 0.7352)
    assert two.epoch_s == pytest.approx(50 * 0.7352)


def test_a_calibrated_fabric_next_to_the_nominal_one():
    """Its bus bandwidth and its latency per step are used at other numbers of ranks."""
    measured = fit([1_000, 10_000_000], [108, 8_100], 2)  # 100 µs + 0.8 µs per KB: 10 Gbit/s
    made = plan("10M", gbps=25, fabric=measured, compute_ms=10, vms=4).scaling
    assert made[1].calibrated_s == pytest.approx(measured.predict_us(40_000_000) / 1e6, rel=0.02)
    assert made[3].calibrated_s == pytest.approx((6 * 50 + 1.5 * 40e6 * 8 / 10e3) / 1e6, rel=0.02)
    assert made[3].sequential_s == pytest.approx(0.01 + made[3].calibrated_s)


@pytest.mark.parametrize(
    ("precision", "optimizer", "each"),
    [
        ("float32", "adam", 16),
        ("float32", "sgd", 8),
        ("float32", "momentum", 12),
        ("mixed", "adam", 16),
        ("bfloat16", "adamw", 8),
    ],
)
def test_memory_per_parameter(precision, optimizer, each):
    """Value, gradient, the optimizer's state, and the copy of mixed precision."""
    made = plan("1B", precision=precision, optimizer=optimizer)
    assert made["memory"].value == each * 1e9


def test_the_smallest_share_of_a_gpu():
    """5.4 GB and a tenth to spare fit into 8 GB; 16 GB do not fit into 16."""
    names = [one.name for one in plan("340M", gpu="A100").shares]
    assert names == ["A100-8C", "MIG 1g.10gb", "A100-1-10C"]
    assert [one.name for one in plan("1B", gpu="A30").shares] == [
        *("A30-24C", "MIG 4g.24gb", "A30-4-24C")
    ]
    assert plan("1B", gpu="T4").shares == ()
    assert "none is large enough" in repr(plan("1B", gpu="T4"))


@pytest.mark.parametrize(
    ("gpu", "count", "words"),
    [
        ("A100", 2, "a device group of 2 GPUs, with a complete frame buffer each (A100-40C)"),
        ("A100", 4, "4 GPUs, with a complete frame buffer each (A100-40C), which NVLink needs: br"),
        ("A100DX", 4, "a device group of 4 GPUs, with a complete frame buffer each (A100DX-80C)"),
        ("H100XM", 3, "a device group of 4 GPUs (3 is none of its sizes)"),
        ("L40S", 2, "2 GPUs of L40S, which has no NVLink"),
        ("A100", 16, "16 GPUs by DirectPath I/O"),
    ],
)
def test_what_to_ask_for(gpu, count, words):
    """GPUs of one VM exchange data over NVLink only with complete frame buffers."""
    made = plan("340M", gpu=gpu, ranks_per_vm=count)
    assert made.request.startswith(words)
    assert f"for each VM, ask for {words}" in repr(made)
    assert plan("340M", gpu=gpu).request == ""


def test_the_batch_that_hides_communication():
    """At the balance, operations of an iteration take as long as its communication."""
    size = ModelSize(1_000_000, 1_000_000, activation_bytes=1e5, forward_flop=2e9)
    made = plan(size, gbps=10, tflops=10, batch=4, vms=2)
    assert made["operations per iteration"].value == 3 * 2e9 * 4
    batch = made["batch at the balance"].value
    assert batch == 11  # 10.67: 3 × 2 GFLOP × batch / 10 TFLOP/s = 8 MB × 8 / 10 Gbit/s
    assert made["compute per iteration"].value == pytest.approx(2.4e-3)
    assert made["memory of activations"].value == 4e5


def test_one_rank_needs_no_link():
    """Its plan is complete, and says nothing about what is not known."""
    made = plan("1M", vms=1, gbps=10, compute_ms=5, samples=100)
    assert "not known: the" not in repr(made)
    assert made.scaling[0].epoch_s == pytest.approx(0.5)


def test_a_calibration_that_may_be_wrong_is_named():
    """Its caveat is among the notes."""
    wild = fit([1_000, 2_000, 4_000, 8_000], [100, 900, 50, 3_000], 2)
    assert not wild.reliable
    assert wild.caveat in repr(plan("1M", fabric=wild))


def test_every_figure_has_a_formula():
    """Those of a plan with all arguments."""
    size = ModelSize(1_000_000, 900_000, activation_bytes=1e5, forward_flop=2e9)
    made = plan(size, gbps=10, tflops=10, samples=1_000, epochs=2)
    assert all(one.formula for one in made.figures)
    assert len({one.name for one in made.figures}) == len(made.figures)
    assert made["gradients"].value == 3_600_000
    text, page = repr(made), made._repr_html_()
    for figure in made.figures:
        assert f"{figure}" in text
        assert figure.name in page
    assert "nan" not in (text + page).lower()
    frame = made.to_frame()
    assert list(frame["ranks"]) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "0"}, "parameters='0': must be a number from 1"),
        ({"model": "9" * 10 + "B"}, "must be a number from 1 to 1e+18"),
        ({"model": "many"}, "parameters='many'"),
        ({"model": -5}, "parameters=-5"),
        ({"model": float("nan")}, "parameters=nan"),
        ({"model": None}, "parameters=None"),
        ({"gbps": 0}, "gbps=0: must be a positive number"),
        ({"gbps": -1}, "gbps=-1"),
        ({"gbps": float("inf")}, "gbps=inf"),
        ({"gbps": "25"}, "gbps='25'"),
        ({"latency_us": -1}, "latency_us=-1"),
        ({"latency_us": float("nan")}, "latency_us=nan"),
        ({"compute_ms": 0}, "compute_ms=0"),
        ({"vms": 0}, "vms=0: must be a positive integer"),
        ({"batch": 2.5}, "batch=2.5"),
        ({"epochs": 0}, "epochs=0"),
        ({"model": "1,28M"}, "parameters='1,28M'"),
        ({"model": 10**400}, "parameters=1000"),
        ({"gbps": 10**400}, "gbps=1000"),
        ({"model": ModelSize(40, 0, 1.0, 1.0)}, "trainable parameters"),
        ({"model": ModelSize(40, -4, 1.0, 1.0)}, "trainable parameters"),
        ({"model": ModelSize(40, 40, 1.0, 0.0), "tflops": 10}, "none was counted"),
        ({"samples": 10, "iterations": 10}, "Give one of them"),
        ({"precision": "fp8"}, "Choose from float32, bfloat16, mixed"),
        ({"optimizer": "lion"}, "Choose from sgd, momentum, adam, adamw"),
        ({"gpu": "RTX"}, "Choose the one in the vGPU profile's name"),
        ({"tflops": 10}, "operations are not known"),
        ({"example": 1}, "Give the model itself"),
    ],
)
def test_impossible_arguments(options, words):
    """Each error names the argument and says what to write."""
    with pytest.raises(wb.UsageError) as raised:
        plan(**{"model": "1M", **options})
    assert words in str(raised.value)


def test_the_command_line(capsys):
    """The same figures as text and as JSON, without loading PyTorch."""
    options = ["plan", "340M", "--iterations", "30000", "--epochs", "100", "--gbps", "25"]
    assert main(options) == 0
    assert "725 h (30.2 days)" in capsys.readouterr().out
    code = "import sys; from workbench.cli import main; main(sys.argv[1:]); "
    code += "assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code, *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {one["name"]: one["value"] for one in found["figures"]}["gradients"] == 1.36e9
    assert main(["plan", "1M", "--gbps", "0"]) == 1
    assert capsys.readouterr().err.startswith("--gbps 0.0: must be a positive number.")
    assert main(["plan", "1M", "--compute-ms", "-1"]) == 1
    assert capsys.readouterr().err.startswith("--compute-ms -1.0: must be")


def test_the_figure_of_several_plans():
    """Two lines for each: without overlap, and above it with full overlap."""
    from workbench.widgets.plan_figure import scaling_figure

    plans = {f"{gbps}": plan("340M", gbps=gbps, compute_ms=400, vms=8) for gbps in (10, 100)}
    none, full, *others = scaling_figure(plans).data
    assert len(others) == 2
    assert list(none.y) == [row.efficiency for row in plans["10"].scaling]
    assert all(low < high <= 1 for low, high in list(zip(none.y, full.y, strict=True))[1:])
    with pytest.raises(wb.UsageError, match="has no efficiency"):
        scaling_figure({"a": plan("340M", gbps=10)})
    with pytest.raises(wb.UsageError, match="no plan given"):
        scaling_figure({})


# roofline

SMALL = ModelSize(1_000_000, 1_000_000, activation_bytes=1e5, forward_flop=2e9)
# SGD in float32: 4 uses of 4 MB of parameters and 2 of 4 MB of gradients; 2 of the activations
TRAFFIC = 4 * 4e6 + 2 * 4e6


@pytest.mark.parametrize(
    ("rate", "bound", "attainable"), [(1_000, "compute", 10e12), (10, "memory", None)]
)
def test_the_roofline_names_what_limits_compute(rate, bound, attainable):
    """The lesser of the rate of operations and of intensity times memory bandwidth."""
    made = plan(SMALL, tflops=10, memory_gb_per_s=rate, batch=2, optimizer="sgd", vms=1)
    traffic, operations = TRAFFIC + 2 * 2e5, 3 * 2e9 * 2
    assert made["memory traffic per iteration"].value == traffic
    assert "estimate" in made["memory traffic per iteration"].formula
    assert made["operations per byte of memory"].value == pytest.approx(operations / traffic)
    attainable = attainable or operations / traffic * rate * 1e9
    found = made["attainable operations per second"]
    assert found.value == pytest.approx(attainable)
    assert f"{bound} is the limit" in found.formula
    assert made["least compute per iteration"].value == pytest.approx(operations / attainable)
    assert made.roofline.bound == bound
    assert found.name in repr(made)


def test_at_the_ridge_both_limits_are_equal():
    made = plan(SMALL, tflops=10, memory_gb_per_s=50, vms=1).roofline
    assert made.ridge == 200
    assert made.at(200) == made.at(400) == 10
    assert made.at(100) == 5


def test_the_optimizer_and_the_precision_change_the_traffic():
    """Adam reads and writes two values per parameter; "mixed" keeps a copy as well."""
    moved = {
        (precision, optimizer): plan(
            SMALL, tflops=10, memory_gb_per_s=50, precision=precision, optimizer=optimizer, vms=1
        ).roofline.memory_bytes
        for precision, optimizer in (("float32", "sgd"), ("float32", "adam"), ("mixed", "sgd"))
    }
    assert moved["float32", "adam"] - moved["float32", "sgd"] == 2 * 8e6
    assert moved["mixed", "sgd"] - moved["float32", "sgd"] == 2 * 4e6 - 6 * 2e6


@pytest.mark.parametrize(("gpu", "rate"), [("A100", 1555), ("H100XM", 3350), ("H200X", 4800)])
def test_a_boards_memory_bandwidth_is_the_published_one(gpu, rate):
    """Its formula says that it is that of the whole board, of which a slice has a part."""
    made = plan(SMALL, tflops=10, gpu=gpu, vms=1)
    assert made.roofline.memory_gb_per_s == rate
    whole = f"{rate} GB/s (of the whole board {gpu})"
    assert whole in made["attainable operations per second"].formula
    made = plan(SMALL, tflops=10, gpu=gpu, memory_gb_per_s=50, vms=1)
    assert "board" not in made["attainable operations per second"].formula


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("1M", {"memory_gb_per_s": 50}, "operations and activations are unknown. Give the model"),
        (
            SMALL,
            {"memory_gb_per_s": 50},
            "the rate of operations of one rank is unknown. Give tflops",
        ),
        (SMALL, {"tflops": 10}, "no GPU was given. Give memory_gb_per_s"),
        (SMALL, {"tflops": 10, "gpu": "H100XL"}, "the memory of H100XL is known here"),
    ],
)
def test_a_roofline_that_is_unknown_says_why(model, options, says):
    """No figure of it is in the plan."""
    made = plan(model, vms=1, **options)
    assert says in made.roofline.reason
    assert f"roofline unknown: {made.roofline.reason}" in repr(made)
    with pytest.raises(KeyError):
        made["memory traffic per iteration"]


def test_an_impossible_memory_bandwidth():
    with pytest.raises(UsageError, match="memory_gb_per_s=0: must be a positive number"):
        plan(SMALL, tflops=10, memory_gb_per_s=0)


def test_the_roofline_is_drawn():
    """The iteration is a point on its roof, which is flat from the ridge on."""
    from workbench.widgets.plan_figure import roofline_figure

    made = plan(SMALL, tflops=10, memory_gb_per_s=10, batch=2, vms=1)
    line, point = roofline_figure(made).data
    assert (point.x[0], point.y[0]) == (made.roofline.intensity, made.roofline.attainable_tflops)
    assert max(line.y) == 10
    assert made.roofline.ridge in line.x
    assert all(y == pytest.approx(made.roofline.at(x)) for x, y in zip(line.x, line.y, strict=True))
    with pytest.raises(UsageError, match=r"has no roofline: the model's .* Give the model"):
        roofline_figure(plan("1M"))


def test_the_command_line_names_options_for_what_is_not_known(capsys):
    main(["plan", "1M"])
    text = capsys.readouterr().out
    assert re.findall("Give (--[a-z-]+)", text) == ["--gbps", "--compute-ms", "--samples"]
