"""Messages between the kernel, the agents and the ranks, and the connections that carry them.

- `rank_messages`, `transfer_messages`, `completion_messages`, `prompt_messages`: messages between
  the kernel and a rank; `profile_messages`: profile a rank with PyTorch's profiler;
  `sample_messages`: sample its Python lines; `logged_values`: values that a cell logs
- `vm_messages`: messages of the ranks of a VM, merged
- `agent_messages`: messages between the kernel and the agent of a VM
- `warm_messages`: messages between a kernel and its warm process
- `message`: the base class of messages, their codec and version
- `cell_cost`: the run time and CPU time of a cell on a rank
- `record`: one iteration of one rank in compact binary; `record_columns`: decodes many at once;
  `layout`: names the collectives of a record
- `transport`: which library carries collectives, over which network
- `values`: pickles values for push and pull
- `address`: how a process connects to the kernel
- `link`: encrypted sockets between the kernel and its ranks; `socket_thread`: the thread that
  uses such a socket, and `wakeup` wakes it
- `detached`: starts agents and other processes that continue after their kernel;
  `kernel_socket`: the socket at which a kernel attaches to such a process
- `foreign_engine`: what an engine of another ipyparallel cluster reports
- `connection_file`: waits for ipyparallel's connection files

To add a message between the kernel and a rank, define a subclass of `Message` in a module that both
import; this package imports most of them. Handle it in the kernel's `ClusterProcesses._dispatch` or
in the rank's `Session._receive`. A message of an agent is also added to `agent_messages._MESSAGES`.
"""

from typing import TYPE_CHECKING, Any

# The codec only decodes messages whose modules have been imported.
from workbench.wire import prompt_messages as prompt_messages
from workbench.wire import rank_messages as rank_messages
from workbench.wire import transfer_messages as transfer_messages
from workbench.wire import vm_messages as vm_messages
from workbench.wire.address import Address
from workbench.wire.layout import Layout
from workbench.wire.message import Message
from workbench.wire.record import Flag, IterationRecord

if TYPE_CHECKING:
    from workbench.wire.link import Inbox, Outbox

__all__ = ["Address", "Flag", "Inbox", "IterationRecord", "Layout", "Message", "Outbox"]


def __getattr__(name: str) -> Any:
    """Import ZeroMQ when a socket is first used: the agent starts faster without it."""
    if name in {"Inbox", "Outbox"}:
        from workbench.wire import link

        return getattr(link, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
