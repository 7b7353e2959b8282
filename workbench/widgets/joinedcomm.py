"""A comm that the page joins by its id, and that no cell is disturbed by."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from comm.base_comm import BaseComm

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


class JoinedComm(BaseComm):
    """Sends from any thread; hears requests on any shell of the kernel.

    Made by the kernel with a known id and never opened: whoever looks joins it.
    Differs from ipykernel's own comm in what it leaves out. Its messages have
    no parent, so none of them counts as a cell's output, and ipykernel 7.4,
    which sends requests to the shell that the comm last published from, has
    nothing to go by: a request reaches the subshell that the page chose. And a
    request triggers no ``pre_execute`` and ``post_execute``: it is no cell.

    Parameters
    ----------
    kernel
        The ipykernel that this process is.
    target, comm_id
        How the page names it.
    on_request
        Called with the content of each request.
    """

    def __init__(
        self,
        kernel: Any,
        target: str,
        comm_id: str,
        on_request: Callable[[dict[str, Any]], None],
    ) -> None:
        self._kernel = kernel
        self._on_request = on_request
        super().__init__(target_name=target, comm_id=comm_id, primary=False)
        kernel.comm_manager.register_comm(self)

    def publish_msg(
        self,
        msg_type: str,
        data: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        buffers: list[bytes] | None = None,
        **keys: Any,
    ) -> None:
        """Send a message to every page that has joined."""
        self._kernel.session.send(
            self._kernel.iopub_socket,
            msg_type,
            {"comm_id": self.comm_id, "data": data or {}, **keys},
            metadata=metadata,
            ident=self.topic,
            buffers=buffers,
        )

    def handle_msg(self, msg: dict[str, Any]) -> None:
        """Hand a request on."""
        request = msg["content"].get("data")
        if isinstance(request, dict):  # nothing else is a request of ours
            self._on_request(request)


@functools.cache
def cell_parent(shell: InteractiveShell, kernel: Any) -> CellParent:
    """Return the one of this kernel."""
    return CellParent(shell, kernel)


class CellParent:
    """Keeps the output of a cell's own threads where it belongs.

    Output of a thread goes to the request that a shell of the kernel took up
    last. A request of a page in the middle of a cell would take that place,
    and what the cell's threads print from then on would be shown nowhere.
    """

    def __init__(self, shell: InteractiveShell, kernel: Any) -> None:
        self._kernel = kernel
        self._parent: tuple[bytes, dict[str, Any]] | None = None
        if not kernel.get_parent("shell").get("content", {}).get("silent"):
            self._keep()
        shell.events.register("pre_run_cell", self._keep)

    def restore(self) -> None:
        """Give the place back to the last cell."""
        if self._parent is not None:
            ident, parent = self._parent
            # In a copy of the context: the reply to the request itself must
            # still find its own parent, or the front end would think the cell done.
            contextvars.copy_context().run(self._kernel.set_parent, ident, parent)

    def _keep(self, _: Any = None) -> None:
        self._parent = (self._kernel._parent_ident["shell"], self._kernel.get_parent("shell"))
        self.restore()  # a request may have come between the cell's arrival and its start
