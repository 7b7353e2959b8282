"""Jupyter server extension: this VM's snapshot, findings and live counters.

- `GET  <base_url>workbench/api/snapshot`
- `GET  <base_url>workbench/api/findings`
- `POST <base_url>workbench/api/read`, of a snapshot or topology file that the client sends
- `WS   <base_url>workbench/api/live`

- on the server's own ``GET <base_url>metrics``, what the kernels' clusters spend and
  what this VM's hardware does

``rest-api.yml`` beside this file describes them. Every route asks for the
server's own authentication and authorisation (resource ``workbench``).
Hardware is read in threads, never on the server's event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "workbench.server"}]


def _load_jupyter_server_extension(serverapp: ServerApp) -> None:
    from workbench.server.app import attach

    attach(serverapp.web_app)
    serverapp.log.info("Gradient Workbench serves %sworkbench/api/", serverapp.base_url)
