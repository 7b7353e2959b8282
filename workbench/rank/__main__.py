"""The process of a rank: an ipyparallel engine that loads PyTorch while it waits.

``python -m workbench.rank PARENT_PID [ipengine's arguments]``
"""

from __future__ import annotations

import sys
import threading

from ipyparallel.engine.app import main as engine_main

from workbench.wire.lifeline import die_with_parent


def _preload() -> None:
    """Import what `session.hello` will ask for; its own import then finds it loaded."""
    import workbench.rank.session  # noqa: F401


def main() -> None:
    """Run until the engine is stopped, or the process that started it is gone."""
    die_with_parent(int(sys.argv.pop(1)))
    threading.Thread(target=_preload, name="workbench-preload", daemon=True).start()
    engine_main()


if __name__ == "__main__":
    main()
