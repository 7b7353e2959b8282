"""The address that a rank's TensorFlow uses for strategies of ``tf.distribute``."""

from __future__ import annotations

import socket
from importlib.util import find_spec

from workbench.rank.backends.process_groups import address_of


def free_address(interface: str) -> dict[str, str]:
    """Return an address with a free port on a network interface; empty without TensorFlow.

    The port is not reserved: TensorFlow opens it when a cell creates its strategy.
    """
    if find_spec("tensorflow") is None:
        return {}
    family, address = address_of(interface)
    with socket.create_server((address, 0), family=family) as listener:
        port = listener.getsockname()[1]
    host = f"[{address}]" if family == socket.AF_INET6 else address
    # the kernel builds TF_CONFIG from the addresses of all ranks
    return {"TENSORFLOW": f"{host}:{port}"}
