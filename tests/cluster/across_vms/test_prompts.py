"""The user answers ranks on other VMs: breakpoint() and input() over ssh."""

import time

import pytest
from typing_user import typing_user

RING = "hvd.allreduce(torch.ones(1), op=hvd.Sum)"
HANG_S = 1.5
LONG_S = 2.5 * HANG_S


@pytest.fixture(scope="module")
def user(machines):
    """A rank on each of two VMs, and a user who types."""
    start = (
        "import workbench as wb\ncluster = wb.Cluster(hosts='vm1:1,vm2:1', "
        f"ssh_config={str(machines.ssh_config)!r}, hang_after_s={HANG_S})\ncluster.start()"
    )
    with typing_user(start) as user:
        user.run("%%distributed\nimport torch")
        yield user


def slowly(text):
    """Type a text after much longer than a rank may be stuck."""

    def answer(_user, _prompt):
        time.sleep(LONG_S)
        return text

    return answer


@pytest.mark.soak
def test_the_debugger_on_another_vm(user):
    """The rank stops there, the other one waits, and is not taken for stuck."""
    cell = (
        f"%%distributed\nseen = rank + 40\nif rank == 1: breakpoint()\n{RING}\n"
        "print('through', seen)"
    )
    done = user.run(cell, slowly("p seen"), "seen = 7", "c")
    assert not done.error
    assert set(done.prompts) == {"[rank 1] (Pdb) "}
    assert "[rank 1] 41" in done.text.splitlines()
    assert "for rank 1, which is at a breakpoint." in done.text
    assert "stuck" not in done.text
    assert done.text.endswith("[rank 0] through 40\n[rank 1] through 7\n")


@pytest.mark.soak
def test_input_on_another_vm(user):
    """What is typed is returned there, however long it takes."""
    cell = f"%%distributed\nname = input('Name? ') if rank == 1 else '-'\n{RING}\nprint(name)"
    done = user.run(cell, slowly("ada"))
    assert not done.error
    assert done.prompts == ["[rank 1] Name? "]
    assert "stuck" not in done.text
    assert done.text.endswith("[rank 0] -\n[rank 1] ada\n")


@pytest.mark.soak
def test_the_stop_button_at_a_prompt_on_another_vm(user):
    """The cell ends on both, and the cluster is usable."""
    cell = f"%%distributed\nif rank == 1: breakpoint()\n{RING}"
    done = user.run(cell, lambda user, _: user.interrupt())
    assert "the cell was interrupted on ranks 0-1" in done.error
    assert user.run(f"%%distributed\nx = {RING}\nprint('on')").text == "[ranks 0-1] on\n"
