"""The log of the package: records are kept and shown on request, and only warnings are printed."""

import logging
import subprocess
import sys

import pytest

from workbench import logs

LOG = logging.getLogger("workbench.example")


@pytest.fixture(autouse=True)
def usual_level(monkeypatch):
    """The level is that of a process without the variable, afterwards that of this one."""
    monkeypatch.delenv(logs.VARIABLE, raising=False)
    logs.set_up()
    yield
    monkeypatch.undo()
    logs.set_up()


def test_records_are_kept_from_the_level_of_the_variable(monkeypatch):
    """By default from info; with debug, all of them."""
    LOG.debug("not kept")
    LOG.info("kept")
    monkeypatch.setenv(logs.VARIABLE, " Debug ")
    logs.set_up()
    LOG.debug("kept too")
    text = logs.recent()
    assert "not kept" not in text
    assert " INFO workbench.example: kept\n" in text
    assert " DEBUG workbench.example: kept too\n" in text


def test_a_level_that_does_not_exist(monkeypatch):
    """The default is used, and a warning names the variable and the levels."""
    monkeypatch.setenv(logs.VARIABLE, "loud")
    logs.set_up()
    LOG.info("still kept")
    assert f"{logs.VARIABLE}=loud: not a level. Set it to one of debug, info" in logs.recent()
    assert "still kept" in logs.recent()


def test_a_traceback_is_kept():
    """An exception that is logged has its lines."""
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        LOG.exception("the division failed")
    assert "the division failed\nTraceback" in logs.recent()
    assert "ZeroDivisionError" in logs.recent()


PRINTS = """
import logging
logging.basicConfig(level=logging.DEBUG, format="root: %(message)s")
import workbench
log = logging.getLogger("workbench.example")
log.info("quiet")
log.warning("loud")
"""


def printed_by(source):
    """What another Python process prints on standard error."""
    process = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stderr


def test_only_warnings_reach_the_handlers_of_the_user():
    """Also those that print records of every level."""
    assert printed_by(PRINTS) == "root: loud\n"


WRONG = """
import logging
import workbench
logging.getLogger("workbench.example").info("%d ranks", "two")
"""


def test_a_message_with_wrong_arguments_does_not_end_its_caller():
    """The standard library reports it."""
    assert "Logging error" in printed_by(WRONG)


def test_the_command_line_prints_records_if_the_variable_is_set(monkeypatch, capsys):
    """They appear on standard error."""
    monkeypatch.setenv(logs.VARIABLE, "info")
    logs.print_all()
    LOG.info("a step of a command")
    monkeypatch.delenv(logs.VARIABLE)
    logs.print_all()
    LOG.info("quiet again")
    printed = capsys.readouterr().err
    assert "a step of a command" in printed
    assert "quiet again" not in printed
