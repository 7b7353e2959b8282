"""The form of ``%cluster``: starts a cluster and changes it, in front ends without the panel."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from ipywidgets import HTML, Button, Dropdown, HBox, IntText, Layout, Text, VBox

from workbench.cluster import registry
from workbench.cluster.start_options import PLACES, START_OPTIONS, StartOption
from workbench.cluster.threads import LatestTask
from workbench.widgets import cluster_actions
from workbench.widgets.clusters import cluster_table

if TYPE_CHECKING:
    from collections.abc import Callable

NO_CLUSTER = "No cluster runs in this notebook. Start one with %cluster start."

_STYLE = {"description_width": "11em"}
_UP = frozenset({"starting", "ready", "running", "stopping", "failed"})


class ClusterForm(VBox):
    """Fields that start a cluster, buttons that change it, and a table of the cluster's state.

    Attributes
    ----------
    fields
        The fields of the options of a start, by the option's name.
    buttons
        The buttons, by the name of the action: ``"start"``, ``"resize"``, ``"restart"``,
        ``"calibrate"`` and ``"stop"``.
    error
        Why the last action failed; empty if it succeeded.
    """

    def __init__(self) -> None:
        options = sorted(START_OPTIONS, key=lambda option: option.name != "launcher")
        self.fields = {option.name: _field(option) for option in options if option.label}
        self.buttons = {
            "start": self._button("Start", lambda: cluster_actions.start(self.options())),
            "resize": self._button("Resize", lambda: cluster_actions.resize(self._ranks.value)),
            "restart": self._button("Restart lost ranks", cluster_actions.restart),
            "calibrate": self._button("Calibrate", cluster_actions.calibrate),
            "stop": self._button("Stop", cluster_actions.stop),
        }
        self.error = ""
        self._pending = False
        self._ranks = IntText(2, description="Ranks", layout=Layout(width="12em"))
        self._state = HTML()
        self._message = HTML()
        start = VBox([*self.fields.values(), self.buttons["start"]])
        change = HBox([self._ranks, *list(self.buttons.values())[1:]])
        self._start = start
        self._change = change
        super().__init__([start, change, self._message, self._state])
        self.fields["launcher"].observe(self._show_fields, "value")
        self._show_fields()
        # Updated in a thread, because the table queries the VMs and listeners must not wait.
        self._updates = LatestTask(self.update)
        self._unsubscribe = registry.subscribe(self._updates.request)
        self.update()

    def close(self) -> None:
        """Remove the form from its page."""
        self._unsubscribe()
        super().close()

    def options(self) -> dict[str, Any]:
        """Return the options of the chosen launcher, without empty ones."""
        launcher = self.fields["launcher"].value
        chosen: dict[str, Any] = {}
        for option in START_OPTIONS:
            if option.label and launcher in option.launchers:
                text = str(self.fields[option.name].value).strip()
                if text:
                    is_count = option.is_number and text.isdecimal()
                    chosen[option.name] = int(text) if is_count else text
        if "hosts" in chosen:  # the slots of the hosts determine the number of ranks
            chosen.pop("n", None)
        return chosen

    def update(self) -> None:
        """Show the current state of the cluster."""
        cluster = registry.current()
        state = "stopped" if cluster is None else cluster.state
        is_up = state in _UP
        self._start.layout.display = "none" if is_up else ""
        self._change.layout.display = "" if is_up else "none"
        is_idle = state == "ready" and not self._pending
        self.buttons["start"].disabled = self._pending
        self.buttons["calibrate"].disabled = not is_idle
        self.buttons["resize"].disabled = not is_idle and (state != "failed" or self._pending)
        self.buttons["restart"].layout.display = "" if state == "failed" else "none"
        self.buttons["restart"].disabled = self._pending
        self.buttons["stop"].disabled = state == "stopping"
        reason = "" if is_idle or not is_up else "Only while no cell runs and all ranks are there."
        self.buttons["calibrate"].tooltip = self.buttons["resize"].tooltip = reason
        color = "var(--jp-error-color1, #b00020)"
        error = escape(self.error)
        alert = f'<div role="alert" style="color:{color}">{error}</div>'
        self._message.value = alert if error else ""
        self._state.value = self._status_html()

    def _button(self, name: str, action: Callable[[], None]) -> Button:
        button = Button(description=name, layout=Layout(width="auto", align_self="flex-start"))
        button.on_click(lambda _: self._begin(action))
        return button

    def _begin(self, action: Callable[[], None]) -> None:
        self.error = ""
        self._pending = True
        self._updates.request()
        cluster_actions.run_in_thread(action, self._fail, self._end)

    def _fail(self, reason: str) -> None:
        self.error = reason

    def _end(self) -> None:
        self._pending = False
        self._updates.request()

    def _show_fields(self, _change: object = None) -> None:
        """Show the fields of the chosen launcher."""
        launcher = self.fields["launcher"].value
        for option in START_OPTIONS:
            if option.label:
                applies = launcher in option.launchers
                self.fields[option.name].layout.display = "" if applies else "none"

    def _status_html(self) -> str:
        cluster = registry.current()
        return NO_CLUSTER if cluster is None else cluster_table(cluster)._repr_html_()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """Return the widget, and the status for pages without a kernel."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**options)
        cluster = registry.current()
        bundle["text/html"] = self._status_html()
        bundle["text/plain"] = NO_CLUSTER if cluster is None else repr(cluster_table(cluster))
        return bundle


def _field(option: StartOption) -> Any:
    """Return the field of an option: a choice, or a text, because numbers may be empty."""
    arguments: dict[str, Any] = {"description": option.label, "style": _STYLE}
    if option.name == "launcher":
        return Dropdown(options=[(label, name) for name, label in PLACES.items()], **arguments)
    if option.values:
        return Dropdown(options=option.values, **arguments)
    return Text(placeholder=option.example, continuous_update=True, **arguments)
