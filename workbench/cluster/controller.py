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

from workbench.wire.lifeline import die_with_parent

_ENGINES_END_S = 0.75
"""Engines look for their parent as often as this process does, and write until they end."""


def main() -> None:
    """Run until stopped; when the parent is gone, remove the run folder and its keys too."""
    parent, folder = int(sys.argv.pop(1)), sys.argv.pop(1)

    def clean_up() -> None:
        time.sleep(_ENGINES_END_S)
        shutil.rmtree(folder, ignore_errors=True)

    die_with_parent(parent, clean_up)
    threading.Thread(target=_end_with_input, name="workbench-input", daemon=True).start()
    gc.disable()  # what is loaded now all stays
    from ipyparallel.controller.app import main as controller_main

    gc.enable()
    controller_main()


def _end_with_input() -> None:
    """End as on SIGTERM once whoever started this process closes its input."""
    while os.read(0, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
