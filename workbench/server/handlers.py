"""REST: the snapshot, and what the doctor finds in it."""

from __future__ import annotations

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from workbench.doctor import diagnose
from workbench.resources.codec import encode
from workbench.server.snapshots import SnapshotCache

AUTH_RESOURCE = "workbench"


class _Handler(APIHandler):
    """Base: has the snapshots."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, snapshots: SnapshotCache) -> None:
        """Take what `attach` gave."""
        self.snapshots = snapshots


class SnapshotHandler(_Handler):
    """``GET snapshot``."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the snapshot of this VM."""
        snapshot = await self.snapshots.get()
        self.finish(snapshot.to_plain())


class FindingsHandler(_Handler):
    """``GET findings``."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the doctor's findings about this VM, the worst first."""
        snapshot = await self.snapshots.get()
        self.finish({"findings": encode(diagnose(snapshot))})
