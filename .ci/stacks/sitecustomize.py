"""Make each Python process of a test run write the stacks of its threads when SIGUSR1 arrives.

`.ci/limit` sends that signal when a time limit is reached. The folder of this file is in
PYTHONPATH during `.ci/python-tests`, so that kernels, agents and ranks import it too.
"""

import contextlib
import faulthandler
import os
import signal

_FOLDER = os.environ.get("TEST_RUN_FOLDER")
_files: list[int] = []


def _register() -> None:
    """Register the handler with a file of this process; a forked process closes its parent's."""
    inherited = _files[:]
    _files.clear()
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        _files.append(os.open(f"{_FOLDER}/{os.getpid()}.stacks", flags, 0o600))
        faulthandler.register(signal.SIGUSR1, file=_files[0], all_threads=True)
    for file in inherited:
        with contextlib.suppress(OSError):
            os.close(file)


if _FOLDER and os.path.isdir(_FOLDER):  # noqa: PTH112 - pathlib slows down every start
    _register()
    os.register_at_fork(after_in_child=_register)
