"""Form a Horovod ring among running processes.

The steps are those of ``horovod.runner.gloo_run``: an assignment of ranks to hosts, a
rendezvous server in the kernel, and HOROVOD_* variables that each rank reads in ``hvd.init()``.
Horovod is imported when the first ring is formed, because the kernel's Python may lack it.
"""

from __future__ import annotations

import logging
import re
import socket
import sys
import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.cluster.backends import KernelBackend, Ranks, tensorflow_configs
from workbench.cluster.backends.connection_owner import may_connect
from workbench.errors import HorovodMissing, RankError, StartFailed
from workbench.wire.rank_messages import RendezvousPort

if TYPE_CHECKING:
    from horovod.runner.common.util.hosts import SlotInfo

_log = logging.getLogger(__name__)

_GLOO_TIMEOUT_S = 30
"""Horovod's default. Gloo may need this long to detect that a peer ended during a send."""
_SHUT_DOWN = "Horovod has been shut down"
"""Part of the errors of TensorFlow's ops. The class of these errors depends on the op."""
_UNSUPPORTED_WITH_JOIN = "is not supported with Join"
_DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"
_POLL_S = 0.02
"""Maximum time until the server notices that it must stop. Python's default is 0.5 s."""


class KernelHorovodBackend(KernelBackend):
    """Joins ranks in a Horovod ring, with a rendezvous server in the kernel."""

    library = "Horovod"
    module_name = "hvd"
    lost_peer = re.compile(r"Connection (reset|refused|closed)|closed by peer|Broken pipe")
    uneven_fix = (
        "Call every collective on all ranks (the same number of batches on each), or hvd.join() "
        "after the loop."
    )

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks)
        self._rendezvous: Rendezvous | None = None
        self._lock = threading.Lock()

    @staticmethod
    def import_failure(text: str, vm: str) -> StartFailed | None:
        """Return the error of a start if the message names Horovod. See `KernelBackend`."""
        if "horovod" not in text:
            return None
        return HorovodMissing(
            f"the ranks cannot load Horovod ({text.splitlines()[-1]})",
            vm=vm,
            fix="build it there for its PyTorch with `workbench build-horovod`",
        )

    @staticmethod
    def explain_numbers(numbers: str) -> str:
        """Explain how Horovod matches unnamed collectives. See `KernelBackend`."""
        return (
            "Every rank waits for the others, but in different collectives: Horovod matches "
            f"collectives without a name by how many a rank has started before ({numbers}), and "
            "collectives that only some ranks call, as in a process set or before hvd.join(), make "
            "that differ. Interrupt the cell and give the collective a name: name=..."
        )

    @staticmethod
    def is_peer_error(error: RankError) -> bool:
        """Return whether Horovod's collectives raise this error when their ring ends."""
        in_tensorflow = error.name.endswith("Error") and _SHUT_DOWN in error.message
        # An unsupported call during join is the mistake itself, not its effect on another rank.
        if _UNSUPPORTED_WITH_JOIN in error.message:
            return False
        return error.name == "HorovodInternalError" or in_tensorflow

    def _init_once(self) -> None:
        self.close_rendezvous()
        interfaces = [interface for _, interface in self._ranks.places]
        settings = self._ranks.call("ring_settings", [(interface,) for interface in interfaces])
        configs = tensorflow_configs(settings)
        job = _common_job([rank_settings.pop("MPI_JOB", "") for rank_settings in settings])
        shared = shared_settings(settings)
        self.controller = "MPI" if job else "Gloo"
        _log.debug("Forming a Horovod ring of %d ranks over %s", len(settings), self.controller)
        if job:
            mpi = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
            arguments = [({**mpi, **config}, shared) for config in configs]
            self._check_joined(self._ranks.call("init_ring", arguments))
            return
        with self._lock:
            rendezvous = self._rendezvous = self._new_rendezvous()
        self._ring = str(rendezvous.port)
        arguments = [
            (rendezvous.environment(rank, interface) | configs[rank], shared)
            for rank, interface in enumerate(interfaces)
        ]
        dynamic = False
        try:
            joined = self._ranks.call("init_ring", arguments)
            dynamic = any(check.dynamic for check in joined)
        except BaseException:
            self.abort_init()
            raise
        finally:
            if not dynamic:
                self.close_rendezvous()
        self._check_joined(joined)

    def abort_earlier_init(self) -> None:
        """Abort the wait of ranks for the rendezvous server of an earlier kernel."""
        if self._rendezvous is None:
            self.abort_init()

    def serve_init(self, rank: int) -> None:
        """Send the port of the rendezvous server to a rank whose cell calls ``hvd.init()``."""
        with self._lock:
            if self._rendezvous is None:
                self._rendezvous = self._new_rendezvous()
            port = self._rendezvous.port
        self._ranks.send(rank, RendezvousPort(port))

    def close_rendezvous(self) -> None:
        """Stop the server. ``hvd.init()`` then fails in ranks that still wait for an address."""
        with self._lock:
            rendezvous = self._rendezvous
            self._rendezvous = None
        if rendezvous is not None:
            rendezvous.close()

    def _new_rendezvous(self) -> Rendezvous:
        plan = assign([f"vm{vm}" for vm, _ in self._ranks.places])
        rendezvous = Rendezvous(plan, self._ranks.address)
        rendezvous.start()
        return rendezvous


def _common_job(jobs: list[str]) -> str:
    """Return the MPI job that consists of exactly these ranks; empty if there is none.

    Parameters
    ----------
    jobs
        The name and the number of processes of each rank's MPI job; empty without a job.
    """
    job = jobs[0] if len(set(jobs)) == 1 else ""
    return job if job and int(job.split()[1]) == len(jobs) else ""


def assign(hosts: list[str]) -> list[SlotInfo]:
    """Assign a slot of Horovod to each rank.

    Parameters
    ----------
    hosts
        The host name of each rank, by rank. Ranks of the same host are consecutive.
    """
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

    slots = ",".join(f"{host}:{count}" for host, count in Counter(hosts).items())
    plan: list[SlotInfo] = get_host_assignments(parse_hosts(slots), len(hosts))
    return plan


def shared_settings(ranks: list[dict[str, str]]) -> dict[str, str]:
    """Return the settings that all ranks of the previous ring share, for the ranks of the next.

    If dynamic process sets are on for one rank, they are turned on for all, because Horovod
    cannot form a ring otherwise.

    Parameters
    ----------
    ranks
        The HOROVOD_* variables of each rank; empty for a rank that was in no ring before.

    Examples
    --------
    >>> shared_settings([{"HOROVOD_CYCLE_TIME": "2", "HOROVOD_LOG_LEVEL": "info"},
    ...                  {"HOROVOD_CYCLE_TIME": "2"}, {}])
    {'HOROVOD_CYCLE_TIME': '2'}
    """
    before = [settings for settings in ranks if settings]
    shared = dict(
        set.intersection(*(set(settings.items()) for settings in before)) if before else ()
    )
    dynamic_values = [
        settings[_DYNAMIC] for settings in before if settings.get(_DYNAMIC, "") not in {"", "0"}
    ]
    return {**shared, **({_DYNAMIC: dynamic_values[0]} if dynamic_values else {})}


def _print_error(*_: object) -> None:
    """Print the traceback of a request's error, unless the rank has closed its connection."""
    if not isinstance(sys.exc_info()[1], OSError):
        _log.exception("a request to the rendezvous server failed")


class Rendezvous:
    """Horovod's rendezvous server, on one interface.

    One server serves one init. It is closed once the ring is formed, unless ranks may add
    process sets later, because process sets connect through the server as well.

    Parameters
    ----------
    plan
        The slot of each rank, from `assign`.
    address
        The IP address at which the server listens.
    """

    def __init__(self, plan: list[SlotInfo], address: str = "127.0.0.1") -> None:
        self._plan = plan
        self._address = address

    def start(self) -> None:
        """Start the server."""
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

        self._server = RendezvousHTTPServer((self._address, 0), RendezvousHandler, 0)
        # Horovod's server has no authentication. Without this check, another user of this machine
        # could change the addresses of the ranks.
        self._answer = self._server.process_request_thread
        self._server.process_request_thread = self._answer_if_allowed
        # The default handler also prints an error if a rank was freed before its answer arrived.
        self._server.handle_error = _print_error
        # Do not call the server's `init(plan)`. Without that call, the server removes a rank's
        # address once that rank is connected, so the next hvd.init() in a cell cannot connect to
        # an old address.
        serve = partial(self._server.serve_forever, poll_interval=_POLL_S)
        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()
        _log.debug("Rendezvous server listens on %s port %d", self._address, self.port)

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer_if_allowed(self, request: socket.socket, client: tuple[Any, ...]) -> None:
        """Answer a request, unless it comes from another user of this machine.

        The server calls this in a separate thread for each request.
        """
        if may_connect(client[:2], (self._address, self.port)):
            self._answer(request, client)
        else:
            _log.info("Refused a rendezvous request from another user (%s)", client[0])
            self._server.shutdown_request(request)

    @property
    def port(self) -> int:
        """The port of the server. Each ring has a different port."""
        return int(self._server.server_address[1])

    def environment(self, rank: int, interface: str) -> dict[str, str]:
        """Return the HOROVOD_* variables through which a rank finds the others.

        Parameters
        ----------
        interface
            The network interface to which Gloo binds on the VM of that rank.
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
            "GLOO_RENDEZVOUS_ADDR": self._address,
            "GLOO_RENDEZVOUS_PORT": self.port,
            "GLOO_IFACE": interface,
            "GLOO_TIMEOUT_SECONDS": _GLOO_TIMEOUT_S,
            "CONTROLLER": "gloo",
            "CPU_OPERATIONS": "gloo",
        }
        return {f"HOROVOD_{name}": str(value) for name, value in values.items()}
