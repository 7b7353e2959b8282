"""The controls of a replay, above its live view."""

from __future__ import annotations

import threading
from typing import Any

from workbench.widgets.live import LiveView
from workbench.widgets.replay import Replay, ReplaySource, clock_text

_SPEEDS = (0.5, 1.0, 2.0, 5.0, 10.0, 50.0)
_view: ReplayView | None = None
"""The latest view. The next replay closes it."""


def replay_view(run: str, speed: float | None) -> ReplayView:
    """Start a replay in place of the notebook's cluster, and return its view."""
    global _view  # noqa: PLW0603 - one kernel has one current cluster, and one replay
    replay = Replay(run, 1.0 if speed is None else speed).start()
    if _view is not None:
        _view.close()
    _view = ReplayView(replay)
    return _view


class ReplayView:
    """A play button, the position, the speed, and a live view of the recording."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self._view = LiveView(ReplaySource(replay))
        self._unsubscribe: Any = lambda: None
        self._updating = threading.local()
        """`active` is true while this thread, rather than the user, sets the slider."""

    def __repr__(self) -> str:
        return repr(self.replay)

    def close(self) -> None:
        """Stop updating."""
        self._unsubscribe()
        self._view.close()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self._controls())
        display(self._view)

    def _controls(self) -> Any:
        import ipywidgets

        replay = self.replay
        clock = replay.clock
        self._play = ipywidgets.Button(layout=ipywidgets.Layout(width="auto"))
        self._position = ipywidgets.FloatSlider(
            0.0, min=0.0, max=max(clock.length_s, 0.1), step=0.1, readout=False,
            continuous_update=False, description="Position",
            layout=ipywidgets.Layout(flex="1 1 auto"),
        )  # fmt: skip
        self._speed = ipywidgets.Dropdown(
            options=[
                (f"\u00d7{speed:g}", speed) for speed in sorted({*_SPEEDS, replay.speed})
            ],
            value=replay.speed, description="Speed",
            layout=ipywidgets.Layout(width="160px"),
        )  # fmt: skip
        self._label = ipywidgets.Label()
        self._close = ipywidgets.Button(
            description="Close", tooltip="End the replay", layout=ipywidgets.Layout(width="auto")
        )
        self._play.on_click(lambda _: replay.pause() if clock.playing else replay.play())
        self._close.on_click(lambda _: replay.stop())
        self._position.observe(self._seek, "value")
        self._speed.observe(lambda change: setattr(replay, "speed", change["new"]), "value")
        self._unsubscribe = replay.subscribe(self._update)
        self._update()
        controls = [self._play, self._position, self._speed, self._close]
        return ipywidgets.VBox([ipywidgets.HBox(controls), self._label])

    def _seek(self, change: dict[str, Any]) -> None:
        if not getattr(self._updating, "active", False):  # the user has moved the slider
            self.replay.seek(change["new"])

    def _update(self) -> None:
        """Show the position; called from any thread."""
        clock = self.replay.clock
        ended = self.replay.state == "stopped"
        self._updating.active = True
        try:
            self._position.value = clock.position_s
        finally:
            self._updating.active = False
        playing = clock.playing and not ended
        self._play.description = "Pause" if playing else "Play"
        self._play.icon = "pause" if playing else "play"
        for control in (self._play, self._position, self._speed, self._close):
            control.disabled = ended
        length = clock_text(clock.length_s)
        self._label.value = f"{self.replay!r}" if not ended else f"Replay ended ({length})."
