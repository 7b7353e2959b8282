"""A comm that exists in the kernel under a known id, without a ``comm_open`` message."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from comm.base_comm import BaseComm

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


class PreopenedComm(BaseComm):
    """A comm that sends from any thread and receives requests on any shell of the kernel.

    The kernel creates it under a known id and sends no ``comm_open``; each page connects to
    that id. It differs from ipykernel's own comm in two ways:

    - Its messages have no parent header, so they do not count as a cell's output. ipykernel 7.4
      routes requests to the shell that last published on the comm. Without a parent header, a
      request reaches the subshell that the page chose.
    - A request does not trigger ``pre_execute`` and ``post_execute``, because it is not a cell.

    Parameters
    ----------
    kernel
        The ipykernel of this process.
    target, comm_id
        The target name and the id with which a page connects.
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
        """Send a message to every connected page."""
        self._kernel.session.send(
            self._kernel.iopub_socket,
            msg_type,
            {"comm_id": self.comm_id, "data": data or {}, **keys},
            metadata=metadata,
            ident=self.topic,
            buffers=buffers,
        )

    def handle_msg(self, msg: dict[str, Any]) -> None:
        """Pass the content of a request to the callback."""
        request = msg["content"].get("data")
        if isinstance(request, dict):  # a page sends no other type
            self._on_request(request)


@functools.cache
def cell_parent(shell: InteractiveShell, kernel: Any) -> CellParent:
    """Return the `CellParent` of this kernel, created on first use."""
    return CellParent(shell, kernel)


class CellParent:
    """Restores the parent header of the current cell after a request.

    ipykernel assigns output of background threads to the request that a shell received
    last. In the middle of a cell, that would be a page's request, and no output area would
    show the later output of the cell's threads.
    """

    def __init__(self, shell: InteractiveShell, kernel: Any) -> None:
        self._shell = shell
        self._kernel = kernel
        self._parent: tuple[bytes, dict[str, Any]] | None = None
        if not kernel.get_parent("shell").get("content", {}).get("silent"):
            self._save()
        shell.events.register("pre_run_cell", self._save)

    def restore(self) -> None:
        """Make the last cell the parent of output again."""
        # Within %%capture, the shell's publisher only stores outputs, and has no `set_parent`.
        if self._parent is not None and hasattr(self._shell.display_pub, "set_parent"):
            ident, parent = self._parent
            # The parent is set in a copy of the context, because the reply to the request must keep
            # its own parent header. Otherwise, the front end would consider the cell finished.
            contextvars.copy_context().run(self._kernel.set_parent, ident, parent)

    def _save(self, _: Any = None) -> None:
        self._parent = (self._kernel._parent_ident["shell"], self._kernel.get_parent("shell"))
        self.restore()  # a request may have arrived between the cell's arrival and its start
