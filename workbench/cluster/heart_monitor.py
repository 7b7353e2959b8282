"""A heart monitor for ipyparallel's controller that registers engines without delay.

ipyparallel's own monitor registers an engine at the second heartbeat after it has connected.
"""

from __future__ import annotations

import time
from typing import Any

import zmq
from ipyparallel.controller import heartmonitor
from tornado.ioloop import PeriodicCallback
from zmq.eventloop.zmqstream import ZMQStream

_REPEAT_MS = 5
_REPEAT_S = 2.0
"""Heartbeats are repeated for this time if an engine does not answer."""


class HeartMonitor(heartmonitor.HeartMonitor):
    """Repeats the latest heartbeat while an engine connects; its first answer registers it."""

    def start(self) -> None:
        """Start the heartbeats."""
        self._connecting = 0
        self._deadline = 0.0
        self._repetition = PeriodicCallback(self._repeat, _REPEAT_MS)
        super().start()
        events = self.pong_stream.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._events = ZMQStream(events)
        self._events.on_recv(self._connected)

    def handle_pong(self, message: list[bytes]) -> None:
        """Handle an answer to a heartbeat; register the engine if it is new."""
        super().handle_pong(message)
        new = self.responses.difference(self.hearts)
        if new:
            self.handle_new_hearts(new)
            self._connecting -= len(new)

    def _connected(self, _: Any) -> None:
        self._connecting += 1
        self._deadline = time.monotonic() + _REPEAT_S
        if not self._repetition.is_running():
            self._repetition.start()

    def _repeat(self) -> None:
        if self._connecting <= 0 or time.monotonic() > self._deadline:
            self._connecting = 0
            self._repetition.stop()
            return
        self.ping_stream.send(str(self.lifetime).encode("ascii"))
        self.ping_stream.flush()
