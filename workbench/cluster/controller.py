"""The process of a cluster's controller: ipyparallel's, that leaves nothing behind.

``python -m workbench.cluster.controller PARENT_PID RUN_FOLDER [ipcontroller's arguments]``
"""

from __future__ import annotations

import shutil
import sys
from functools import partial

from ipyparallel.controller.app import main as controller_main

from workbench.wire.lifeline import die_with_parent


def main() -> None:
    """Run until stopped; when the parent is gone, remove the run folder and its keys too."""
    parent, folder = int(sys.argv.pop(1)), sys.argv.pop(1)
    die_with_parent(parent, partial(shutil.rmtree, folder, ignore_errors=True))
    controller_main()


if __name__ == "__main__":
    main()
