"""Jupyter server extension that serves this VM's snapshot, findings and live counters.

- `GET  <base_url>workbench/api/snapshot`
- `GET  <base_url>workbench/api/findings`
- `POST <base_url>workbench/api/read`: read a snapshot or topology file that the client sends
- `GET  <base_url>workbench/api/clusters`
- `DELETE <base_url>workbench/api/clusters/NAME`: stop a cluster that is kept without a kernel
- `GET  <base_url>workbench/api/runs/NAME/files/FILE`: an evidence bundle or the trace of a profile
- `WS   <base_url>workbench/api/live`

It also adds metrics of the running clusters and of this VM's hardware to the server's
``GET <base_url>metrics``.

``rest-api.yml`` in this folder describes the routes. Every route requires the server's
authentication and authorization (resource ``workbench``). Hardware is read in threads,
never on the server's event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "workbench.server"}]


def _load_jupyter_server_extension(serverapp: ServerApp) -> None:
    from workbench.server.app import attach
    from workbench.server.settings import GradientWorkbench

    GradientWorkbench(config=serverapp.config).apply()

    attach(serverapp.web_app)
    serverapp.log.info("Gradient Workbench serves %sworkbench/api/", serverapp.base_url)
