"""The process of a cluster's controller: ipyparallel's, that leaves nothing behind.

``python -m workbench.cluster.controller PARENT_PID RUN_FOLDER [ipcontroller's arguments]``
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable

from workbench.wire.lifeline import die_with_parent
from workbench.wire.lines import END

_ENGINES_END_S = 0.75
"""Engines look for their parent as often as this process does, and write until they end."""


def main() -> None:
    """Run until stopped; when the parent is gone, remove the run folder and its keys too."""
    parent, folder = int(sys.argv.pop(1)), sys.argv.pop(1)

    def clean_up() -> None:
        time.sleep(_ENGINES_END_S)
        shutil.rmtree(folder, ignore_errors=True)

    die_with_parent(parent, clean_up)
    threading.Thread(
        target=_end_with_input, args=(clean_up,), name="workbench-input", daemon=True
    ).start()
    gc.disable()  # what is loaded now all stays
    from ipyparallel.controller.app import main as controller_main

    gc.enable()
    controller_main()


def _end_with_input(clean_up: Callable[[], None]) -> None:
    """End as on SIGTERM once the input ends; clean up where it does so unannounced."""
    last = b""
    while data := os.read(0, 1 << 16):
        last = (last + data)[-len(END) :]
    if last != END:
        clean_up()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
