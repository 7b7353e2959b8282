"""Forms a Horovod ring among processes that already run.

The steps are those of ``horovod.runner.gloo_run``: an assignment of ranks to hosts, a
rendezvous server in the kernel, and HOROVOD_* variables that each rank reads in ``hvd.init()``.
Horovod is imported when the first ring is formed: the kernel may lack it.
"""

from __future__ import annotations

import re
import socket
import sys
import threading
import traceback
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.cluster.backends import Backend, Ranks, tensorflow_configs
from workbench.cluster.backends.own_peers import may_connect
from workbench.errors import HorovodMissing, RankError, StartFailed
from workbench.wire.rank_messages import RendezvousPort

if TYPE_CHECKING:
    from horovod.runner.common.util.hosts import SlotInfo

_GLOO_TIMEOUT_S = 30
"""Horovod's default. If a peer ends while Gloo sends to it, Gloo may not notice earlier."""
_SHUT_DOWN = "Horovod has been shut down"
"""In the errors of TensorFlow's ops, whose class depends on the operation."""
_WITH_JOIN = "is not supported with Join"
_DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"
_POLL_S = 0.02
"""How long the server takes to notice that it must stop; half a second by default."""


class HorovodBackend(Backend):
    """Joins ranks in a Horovod ring, with a rendezvous server in the kernel."""

    library = "Horovod"
    module_name = "hvd"
    lost_peer = re.compile(r"Connection (reset|refused|closed)|closed by peer|Broken pipe")
    uneven_cure = (
        "Call every collective on all ranks (the same number of batches on each), or hvd.join() "
        "after the loop."
    )

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks)
        self._rendezvous: Rendezvous | None = None
        self._lock = threading.Lock()

    @staticmethod
    def import_failure(text: str, vm: str) -> StartFailed | None:
        """Return the error of a start if the text names Horovod."""
        if "horovod" not in text:
            return None
        return HorovodMissing(
            f"the ranks cannot load Horovod ({text.splitlines()[-1]})",
            vm=vm,
            cure="build it there for its PyTorch with `workbench build-horovod`",
        )

    @staticmethod
    def explain_numbers(numbers: str) -> str:
        """Return how Horovod matches such collectives."""
        return (
            "Every rank waits for the others, but in different collectives: Horovod matches "
            f"collectives without a name by how many a rank has started before ({numbers}), and "
            "collectives that only some ranks call, as in a process set or before hvd.join(), make "
            "that differ. Interrupt the cell and give the collective a name: name=..."
        )

    @staticmethod
    def is_peer_error(error: RankError) -> bool:
        """Whether it is the error that Horovod's collectives raise when their ring ends."""
        in_tensorflow = error.name.endswith("Error") and _SHUT_DOWN in error.message
        if _WITH_JOIN in error.message:  # the mistake itself, and not its effect on another rank
            return False
        return error.name == "HorovodInternalError" or in_tensorflow

    def _init_once(self) -> None:
        self.close_rendezvous()
        interfaces = [interface for _, interface in self._ranks.places]
        settings = self._ranks.call("ring_settings", [(interface,) for interface in interfaces])
        configs = tensorflow_configs(settings)
        job = _common_job([one.pop("MPI_JOB", "") for one in settings])
        shared = shared_settings(settings)
        self.controller = "MPI" if job else "Gloo"
        if job:
            mpi = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
            given = [({**mpi, **config}, shared) for config in configs]
            self._check_joined(self._ranks.call("init_ring", given))
            return
        with self._lock:
            rendezvous = self._rendezvous = self._new_rendezvous()
        self._ring = str(rendezvous.port)
        given = [
            (rendezvous.environment(rank, interface) | configs[rank], shared)
            for rank, interface in enumerate(interfaces)
        ]
        dynamic = False
        try:
            joined = self._ranks.call("init_ring", given)
            dynamic = any(check.dynamic for check in joined)
        except BaseException:
            self.abort_init()
            raise
        finally:
            if not dynamic:
                self.close_rendezvous()
        self._check_joined(joined)

    def abort_earlier_init(self) -> None:
        """Make ranks that wait for the rendezvous server of an earlier kernel give up."""
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
        """Stop the server; ``hvd.init()`` fails in ranks that still wait for an address."""
        with self._lock:
            rendezvous, self._rendezvous = self._rendezvous, None
        if rendezvous is not None:
            rendezvous.close()

    def _new_rendezvous(self) -> Rendezvous:
        plan = assign([f"vm{vm}" for vm, _ in self._ranks.places])
        rendezvous = Rendezvous(plan, self._ranks.address)
        rendezvous.start()
        return rendezvous


def _common_job(jobs: list[str]) -> str:
    """Return the MPI job of which the ranks are all processes; empty if there is none."""
    job = jobs[0] if len(set(jobs)) == 1 else ""
    return job if job and int(job.split()[1]) == len(jobs) else ""


def assign(hosts: list[str]) -> list[SlotInfo]:
    """Return Horovod's slot for each rank.

    Parameters
    ----------
    hosts
        Host name of each rank, in the order of the ranks; ranks of one host are consecutive.
    """
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

    slots = ",".join(f"{host}:{count}" for host, count in Counter(hosts).items())
    plan: list[SlotInfo] = get_host_assignments(parse_hosts(slots), len(hosts))
    return plan


def shared_settings(ranks: list[dict[str, str]]) -> dict[str, str]:
    """Return the settings that all ranks of the previous ring share; new ranks get them too.

    Dynamic process sets are on for all ranks if they are on for one: otherwise no ring forms.

    Parameters
    ----------
    ranks
        The HOROVOD_* variables of each rank; empty for a rank that was in no ring before.
    """
    before = [settings for settings in ranks if settings]
    shared = dict(
        set.intersection(*(set(settings.items()) for settings in before)) if before else ()
    )
    on = [settings[_DYNAMIC] for settings in before if settings.get(_DYNAMIC, "") not in {"", "0"}]
    return {**shared, **({_DYNAMIC: on[0]} if on else {})}


def _print_error(*_: object) -> None:
    """Print the error of a request, unless the rank has closed its connection."""
    if not isinstance(sys.exc_info()[1], OSError):
        traceback.print_exc()


class Rendezvous:
    """Horovod's rendezvous server, on one interface.

    One server serves one init. It is closed once the ring is formed, unless ranks may add
    process sets later: those connect through it as well.

    Parameters
    ----------
    plan
        From `assign`.
    address
        Where to listen.
    """

    def __init__(self, plan: list[SlotInfo], address: str = "127.0.0.1") -> None:
        self._plan = plan
        self._address = address

    def start(self) -> None:
        """Start the server."""
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

        self._server = RendezvousHTTPServer((self._address, 0), RendezvousHandler, 0)
        # Horovod's server has no keys: another user could change the ranks' addresses
        self._answer = self._server.process_request_thread
        self._server.process_request_thread = self._answer_own_peers
        # the default also prints that a rank was freed before it had its answer
        self._server.handle_error = _print_error
        # without `init(plan)`, the server removes a rank's address when that rank is connected;
        # otherwise the next hvd.init() in a cell could connect to an old address
        serve = partial(self._server.serve_forever, poll_interval=_POLL_S)
        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer_own_peers(self, request: socket.socket, client: tuple[Any, ...]) -> None:
        """Answer a request in its own thread, unless it is from another user of this machine."""
        if may_connect(client[:2], (self._address, self.port)):
            self._answer(request, client)
        else:
            self._server.shutdown_request(request)

    @property
    def port(self) -> int:
        """The port of the server; another one for each ring."""
        return int(self._server.server_address[1])

    def environment(self, rank: int, interface: str) -> dict[str, str]:
        """Return the variables with which a rank finds the others.

        Parameters
        ----------
        interface
            The network interface of that rank's VM to which Gloo binds.
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
