"""The ipyparallel engine of a rank."""

from __future__ import annotations

import traceback

from ipyparallel.engine.app import IPEngine


class Engine(IPEngine):
    """An engine that continues after a signal handler of a cell has raised between cells.

    ipyparallel's engine would end, for example at an alarm that an earlier cell has set, and the
    rank's variables would be lost. The traceback is in the rank's log.
    """

    def start(self) -> None:
        """Handle requests until the engine is stopped."""
        loop = self.loop.asyncio_loop
        running = loop.create_task(self._start())
        running.add_done_callback(lambda _: loop.stop())
        is_loop_alive = True

        def mark_loop_alive() -> None:
            nonlocal is_loop_alive
            is_loop_alive = True

        while True:
            try:
                loop.run_forever()
                break
            except (KeyboardInterrupt, Exception):
                traceback.print_exc()
                if (
                    not is_loop_alive
                ):  # the loop itself is broken: a cell has closed its descriptors
                    raise
                is_loop_alive = False
                loop.call_soon(mark_loop_alive)
        if running.done():
            running.result()
