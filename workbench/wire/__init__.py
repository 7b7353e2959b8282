"""What passes between the kernel and the ranks.

- `message`: one control message, its codec and version
- `record`: one iteration of one rank, as compact binary
- `layout`: the tensors that the iterations of a model reduce, sent once
- `link`: the encrypted, authenticated sockets at both ends
- `lifeline`, `connection_file`: how processes that belong together start and end
"""

from workbench.wire.layout import Layout
from workbench.wire.link import Address, Inbox, Outbox
from workbench.wire.message import Message
from workbench.wire.record import Flag, IterationRecord

__all__ = ["Address", "Flag", "Inbox", "IterationRecord", "Layout", "Message", "Outbox"]
