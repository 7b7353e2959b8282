"""The cell, `explain` and the verdict say that ranks exchange no gradients, and only then."""

import pytest
from clusters import quiet
from levels import in_soak
from timers import eventually

import workbench as wb

SAID = "No gradient was exchanged in"
LOOP = """
import torch
torch.manual_seed(rank)
net = torch.nn.Linear(64, 8)
plain = opt = torch.optim.SGD(net.parameters(), lr=0.1)
def step(optimizer=None):
    optimizer = optimizer or opt
    optimizer.zero_grad()
    loss = net(torch.randn(32, 64)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
"""
WRAPPED = "opt = hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters())\n"

SEPARATE = {
    "an optimizer that is not wrapped": "for _ in range(5): step()",
    "only losses are averaged": "for _ in range(5): hvd.allreduce(step(), name='loss')",
    "only the first parameters are equal": (
        "hvd.broadcast_parameters(net.state_dict(), root_rank=0)\nfor _ in range(5): step()"
    ),
    "only barriers": "for _ in range(5): step(); hvd.barrier()",
}
TOGETHER = {
    "a wrapped optimizer": WRAPPED + "for _ in range(5): step()",
    "parameters are averaged by hand every third step": """
for number in range(7):
    step()
    if number % 3 == 2:
        for at, p in enumerate(net.parameters()):
            p.data = hvd.allreduce(p.data, name=f"p{at}")
""",
    "parameters are averaged at the end": """
for _ in range(5): step()
for at, p in enumerate(net.parameters()): p.data = hvd.allreduce(p.data, name=f"p{at}")
""",
    "one rank only": "if rank == 0:\n    for _ in range(5): step()",
    "too few iterations to know": "step(); step()",
    "one rank continues alone": WRAPPED
    + """
for _ in range(4): step()
if rank == 0:
    net = torch.nn.Linear(64, 8)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5): step()
""",
    "tiny parameters": """
tiny = torch.nn.Parameter(torch.zeros(1))
opt = torch.optim.SGD([tiny], lr=0.1)
for _ in range(5):
    (tiny * rank).sum().backward()
    tiny.grad = hvd.allreduce(tiny.grad, name="tiny")
    opt.step()
""",
    "gradients are gathered as objects": """
for _ in range(4):
    net(torch.ones(4, 64)).sum().backward()
    gathered = hvd.allgather_object(net.weight.grad)
    plain.step()
""",
    "evaluation only": "with torch.no_grad():\n    for _ in range(5): net(torch.ones(4, 64))",
}


def shown(cluster, code):
    """What a cell shows, with the kernel's notes after its end."""
    from workbench.cluster import TextSink

    sink = TextSink()
    cluster.run(LOOP + code, sink=sink)
    return sink.text


@pytest.mark.parametrize("code", SEPARATE.values(), ids=SEPARATE.keys())
def test_ranks_that_train_separately(cluster, code):
    """The cell says in how many iterations, and what to do."""
    text = shown(cluster, code)
    assert f"{SAID} 5 iterations on ranks 0-1" in text
    assert "hvd.DistributedOptimizer(...)" in text
    assert "--backend ddp" in text


def test_what_explain_and_the_verdict_say(cluster):
    """It is the first cause, and the verdict does not claim communication without cost."""
    shown(cluster, SEPARATE["an optimizer that is not wrapped"])
    first = wb.explain(cluster)[0]
    assert first.name == "gradients that are not exchanged"
    assert "no gradient was exchanged in 5 iterations" in first.evidence
    verdict = wb.verdict(cluster)
    assert "no gradient was exchanged" in verdict.headline
    assert "exposed communication" not in verdict.headline
    assert SAID in cluster.timings.remark
    cluster.timings.conclude(verdict)
    run = cluster.timings.path  # its files are written in the background
    assert eventually(
        lambda: [cause.name for cause in wb.explain(wb.open_run(run))][:1] == [first.name]
    )
    shown(cluster, TOGETHER["a wrapped optimizer"])
    assert all(cause.name != first.name for cause in wb.explain(cluster))
    assert SAID not in cluster.timings.remark


@pytest.mark.parametrize("code", TOGETHER.values(), ids=TOGETHER.keys())
def test_no_false_alarm(cluster, code):
    """Nothing is said where the ranks may train one model, or one of them trains on purpose."""
    assert SAID not in shown(cluster, code)


@pytest.mark.parametrize("variables", ["", in_soak("import os; os.environ['RANK'] = str(rank)\n")])
def test_a_script_for_torchrun_in_a_ring_of_horovod(cluster, variables):
    """The error names the cluster that it needs, and a fallback for ValueError still works."""
    code = variables + "import torch.distributed as dist\n"
    with pytest.raises(wb.RanksFailed, match=r"(RANK|WORLD_SIZE) is not set.*--backend ddp"):
        quiet(cluster, code + "dist.init_process_group('gloo')")
    caught = "try: dist.init_process_group('gloo')\nexcept ValueError: print('alone')"
    assert quiet(cluster, code + caught).output == "[ranks 0-1] alone\n"
    quiet(cluster, "import os; os.environ.pop('RANK', None)")
