"""The ipyparallel engine of a rank."""

from __future__ import annotations

import traceback

from ipyparallel.engine.app import IPEngine


class Engine(IPEngine):
    """An engine that continues after a signal handler of a cell has raised between cells.

    ipyparallel's would end, and with it the variables of the rank: the alarm of a cell that has
    ended is enough. The traceback is in the rank's log.
    """

    def start(self) -> None:
        """Handle requests until the engine is stopped."""
        loop = self.loop.asyncio_loop
        running = loop.create_task(self._start())
        running.add_done_callback(lambda _: loop.stop())
        turned = True

        def turn() -> None:
            nonlocal turned
            turned = True

        while True:
            try:
                loop.run_forever()
                break
            except (KeyboardInterrupt, Exception):
                traceback.print_exc()
                if not turned:  # the loop itself is broken: a cell has closed its descriptors
                    raise
                turned = False
                loop.call_soon(turn)
        if running.done():
            running.result()
