"""The command line parses, delegates and displays."""

import subprocess
import sys
from pathlib import Path

import pytest

import workbench
from workbench.cli import main
from workbench.horovod_build import OPERATIONS


def test_errors_of_ours_are_one_message(capsys):
    """A mistake is one message on standard error and status 1, never a traceback."""
    assert main(["build-horovod", "--without", "gloo"]) == 1
    captured = capsys.readouterr()
    assert "--without gloo: ranks find each other over Gloo" in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    "arguments",
    [[], ["nonsuch"], ["build-horovod", "--with", "smoke"], ["build-horovod", "--jobs", "0"]],
)
def test_a_wrong_call_ends_with_status_2(arguments, capsys):
    """Arguments that cannot be parsed end with status 2 and the usage."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: workbench" in capsys.readouterr().err


def test_every_operation_can_be_chosen(capsys):
    """The options offer exactly the operations that the builder knows."""
    with pytest.raises(SystemExit):
        main(["build-horovod", "--help"])
    assert f"--with {{{','.join(OPERATIONS)}}}" in capsys.readouterr().out


def test_the_package_is_a_program():
    """`python -m workbench` is the same command."""
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"workbench {workbench.__version__}\n"


@pytest.mark.parametrize("command", [["resources"], ["doctor", "--json"]])
def test_a_reader_that_leaves_early(command):
    """As `head` does: the command ends as if by SIGPIPE, without a word."""
    program = subprocess.Popen(
        [sys.executable, "-m", "workbench", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    program.stdout.close()
    assert program.stderr.read() == ""
    assert program.wait() == 141
    program.stderr.close()


@pytest.mark.parametrize("command", [["resources", "--json"], ["doctor"]])
def test_a_full_disk_behind_standard_output(command):
    """It is one line, and status 1."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "workbench", *command],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "standard output: No space left on device. Write it to a disk with free space.\n"
    )
