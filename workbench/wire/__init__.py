"""What passes between the kernel and the ranks.

- `message`: one control message, its codec and version
- `record`: one iteration of one rank, as compact binary
- `layout`: the tensors that the iterations of a model reduce, sent once
- `values`: Python values as bytes, for what is pushed and pulled
- `link`: the encrypted, authenticated sockets at both ends
- `lines`: what the agent of a VM is told, and tells
- `lifeline`, `connection_file`: how processes that belong together start and end
"""

from typing import TYPE_CHECKING, Any

from workbench.wire.layout import Layout
from workbench.wire.message import Message
from workbench.wire.record import Flag, IterationRecord

if TYPE_CHECKING:
    from workbench.wire.link import Address, Inbox, Outbox

__all__ = ["Address", "Flag", "Inbox", "IterationRecord", "Layout", "Message", "Outbox"]


def __getattr__(name: str) -> Any:
    """Load ZeroMQ only where a socket is wanted: ranks can be started before that."""
    if name in {"Address", "Inbox", "Outbox"}:
        from workbench.wire import link

        return getattr(link, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
