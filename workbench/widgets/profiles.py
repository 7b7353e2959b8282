"""The view of ``%timings profile``, and the live view's line about a profile."""

from __future__ import annotations

import sys
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any

from workbench.cluster.profiling import Profile
from workbench.errors import UsageError
from workbench.ranks import as_int
from workbench.widgets.run_files import RunFile, link_bundle

if TYPE_CHECKING:
    from workbench.cluster import Cluster

WAITING = (
    "The next cell that trains will be profiled, after its first iterations. The cell does not "
    "need to know."
)
PROFILING = "Profiling the ranks."


def request_profile(cluster: Cluster, line: str, names: list[str]) -> ProfileView:
    """Profile the running cell or the next one; see ``%timings``."""
    if len(names) == 2 and names[1] in {"iteration", "iterations"} and names[0].isdecimal():
        future = cluster.profile(iterations=as_int(int(names[0])))
    elif len(names) < 2:
        future = cluster.profile(*names)
    else:
        raise UsageError(
            f"%timings {line}: not a duration. Write %timings profile 5s, or %timings profile 20 "
            "iterations."
        )
    return ProfileView(cluster, future)


class ProfileView:
    """A profile in a notebook, as an output that updates itself.

    It shows what the profile waits for, and later its trace.
    """

    def __init__(self, cluster: Cluster, future: Future[Profile]) -> None:
        self._cluster = cluster
        self.future = future

    def __repr__(self) -> str:
        if not self.future.done():
            return PROFILING if self._cluster.profiling.state == "profiling" else WAITING
        try:
            return repr(self.future.result())
        except CancelledError:
            return "Another profile was requested in its place."
        except Exception as error:  # noqa: BLE001 - the cell has ended, so no code can catch it
            return f"{type(error).__name__}: {error}"

    def _ipython_display_(self) -> None:
        from IPython import get_ipython
        from IPython.display import display

        if get_ipython() is None:
            sys.stdout.write(f"{self}\n")
            return
        handle: Any = display(self._bundle(), raw=True, display_id=True)
        self.future.add_done_callback(lambda _: handle.update(self._bundle(), raw=True))

    def _bundle(self) -> dict[str, Any]:
        text = repr(self)
        done = self.future.done() and not self.future.cancelled() and not self.future.exception()
        return link_bundle(self.future.result().path, text, text) if done else {"text/plain": text}


def profile_file(cluster: Cluster) -> RunFile | None:
    """Return the trace of the latest profile, if the server sends it."""
    latest = cluster.profiling.latest
    return RunFile.at(latest.path) if isinstance(latest, Profile) else None


def profile_text(cluster: Cluster) -> str:
    """Return a line for the live view about the latest profile; empty if none was requested."""
    state = cluster.profiling.state
    if state in {"none", "waiting", "profiling"}:
        return {"none": "", "waiting": WAITING, "profiling": PROFILING}[state]
    latest = cluster.profiling.latest
    if not isinstance(latest, Profile):
        return f"No profile: {latest}"
    first = f"{latest.first_iteration:,}"
    last = f"{latest.last_iteration:,}"
    description = f"Profile of iterations {first} to {last}: {latest.path}."
    advice = "Open it in https://ui.perfetto.dev."
    return " ".join((description, advice, latest.cost, *latest.notes))
