"""Forming a Horovod ring among processes that already run.

The flow of ``horovod.runner.gloo_run``: an assignment of ranks to hosts, a
rendezvous server, and HOROVOD_* variables that each rank reads at its init.
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

from horovod.runner.common.util.hosts import SlotInfo, get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

_GLOO_TIMEOUT_S = 30
"""Horovod's own default. Where a peer dies while Gloo sends to it, Gloo may not notice before."""
_DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"
_POLL_S = 0.02
"""How long the server takes to notice that it is to stop; half a second by default."""


def assign(hosts: list[str]) -> list[SlotInfo]:
    """Return Horovod's slot for each rank.

    Parameters
    ----------
    hosts
        Host name of each rank, in rank order, ranks of one host together.
    """
    slots = ",".join(f"{host}:{count}" for host, count in Counter(hosts).items())
    plan: list[SlotInfo] = get_host_assignments(parse_hosts(slots), len(hosts))
    return plan


def shared_settings(ranks: list[dict[str, str]]) -> dict[str, str]:
    """Return the settings that all ranks of the ring before share, for those that are new.

    And that of process sets where only some have set it: such ranks form no ring.

    Parameters
    ----------
    ranks
        The HOROVOD_* variables of each rank; none where it was in no ring before.
    """
    before = [settings for settings in ranks if settings]
    shared = dict(
        set.intersection(*(set(settings.items()) for settings in before)) if before else ()
    )
    on = [settings[_DYNAMIC] for settings in before if settings.get(_DYNAMIC, "") not in {"", "0"}]
    return {**shared, **({_DYNAMIC: on[0]} if on else {})}


class Rendezvous:
    """Horovod's own rendezvous server, on one interface.

    Upstream's starter binds every interface; one server serves one init. It is
    closed once the ring is formed, unless ranks add process sets later, whose
    connections are made through it as well.

    Parameters
    ----------
    plan
        From `assign`.
    interface
        Address to listen on.
    """

    def __init__(self, plan: list[SlotInfo], interface: str = "127.0.0.1") -> None:
        self._plan = plan
        self._interface = interface

    def start(self) -> None:
        """Start to listen."""
        self._server = RendezvousHTTPServer((self._interface, 0), RendezvousHandler, 0)
        # without `init(plan)`: the server removes a rank's address when that rank is connected.
        # With it, addresses may stay that the next hvd.init() in a cell would connect to.
        serve = partial(self._server.serve_forever, poll_interval=_POLL_S)
        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop to listen."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        """Where it listens; another one for each ring."""
        return int(self._server.server_address[1])

    def environment(self, rank: int, interface_name: str) -> dict[str, str]:
        """Return the variables with which `rank` finds the others.

        Parameters
        ----------
        interface_name
            The network interface that Gloo binds on that rank's host.
        """
        slot = self._plan[rank]
        values = {
            "HOSTNAME": slot.hostname,
            "RANK": slot.rank,
            "SIZE": slot.size,
            "LOCAL_RANK": slot.local_rank,
            "LOCAL_SIZE": slot.local_size,
            "CROSS_RANK": slot.cross_rank,
            "CROSS_SIZE": slot.cross_size,
            "GLOO_RENDEZVOUS_ADDR": self._interface,
            "GLOO_RENDEZVOUS_PORT": self.port,
            "GLOO_IFACE": interface_name,
            "GLOO_TIMEOUT_SECONDS": _GLOO_TIMEOUT_S,
            "CONTROLLER": "gloo",
            "CPU_OPERATIONS": "gloo",
        }
        return {f"HOROVOD_{name}": str(value) for name, value in values.items()}
