"""The process of a rank: an ipyparallel engine that loads PyTorch while it waits.

``python -m workbench.rank PARENT_PID CONNECTION_FILE [ipengine's arguments]``
"""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

from workbench.wire.connection_file import wait_until_whole
from workbench.wire.lifeline import die_with_parent

_CONTROLLER_S = 120


def _preload() -> None:
    """Import what `session.hello` will ask for; its own import then finds it loaded."""
    try:
        import workbench.rank.session

        workbench.rank.session.load()
    finally:
        gc.freeze()
        gc.enable()


def main() -> None:
    """Run until the engine is stopped, or the process that started it is gone."""
    parent, connection_file = int(sys.argv.pop(1)), Path(sys.argv.pop(1))
    die_with_parent(parent)
    # PyTorch makes a million objects that all stay: collecting is a fifth of its import
    gc.disable()
    from ipyparallel.engine.app import main as engine_main

    threading.Thread(target=_preload, name="workbench-preload", daemon=True).start()
    if not wait_until_whole(connection_file, _CONTROLLER_S):
        sys.exit(f"no controller wrote {connection_file} within {_CONTROLLER_S} s")
    sys.argv.append(f"--file={connection_file}")
    engine_main()


if __name__ == "__main__":
    main()
