"""Form the default process group of torch.distributed among running processes.

Rank 0 serves the store to which all ranks connect, on its network interface for the cluster. The
ranks get the environment variables that torchrun sets.
"""

from __future__ import annotations

import logging
import re
from collections import Counter

from workbench.cluster.backends import KernelBackend, tensorflow_configs
from workbench.errors import RankError, StartFailed

_log = logging.getLogger(__name__)

_LOST_PEER = (
    r"Connection (reset|refused|closed)|closed by peer|Broken pipe|Socket closed|"
    r"Application timeout caused pair closure|[Ff]ailed to recv|Software caused connection abort"
)


class KernelDDPBackend(KernelBackend):
    """Joins ranks in a process group of torch.distributed."""

    library = "torch.distributed"
    module_name = "dist"
    lost_peer = re.compile(_LOST_PEER)
    uneven_fix = (
        "Call every collective on all ranks, with tensors of the same shape and dtype. Give each "
        "rank the same number of batches, or train in "
        "`with torch.distributed.algorithms.join.Join([model]):`."
    )

    wait_limit = (
        "torch.distributed ends such a wait after the timeout of init_process_group: by default "
        "30 minutes, with NCCL 10."
    )

    @staticmethod
    def import_failure(text: str, vm: str) -> StartFailed | None:
        """Return the error of a start if PyTorch lacks torch.distributed."""
        if "torch.distributed is not available" not in text:
            return None
        return StartFailed(
            "PyTorch was built there without torch.distributed",
            vm=vm,
            fix="install PyTorch there from its own packages",
        )

    @staticmethod
    def explain_numbers(numbers: str) -> str:
        """Explain how torch.distributed matches collectives. See `KernelBackend`."""
        return (
            "Every rank waits for the others, but in different collectives: torch.distributed "
            f"matches them by how many a rank has started before ({numbers}). Interrupt the cell, "
            "and call each collective on all ranks of its group."
        )

    @staticmethod
    def is_peer_error(error: RankError) -> bool:
        """Return whether Gloo or NCCL reports in an error that a connection has ended."""
        names = {"RuntimeError", "DistBackendError", "DistNetworkError"}
        return error.name in names and re.search(_LOST_PEER, error.message) is not None

    def _init_once(self) -> None:
        places = self._ranks.places
        arguments = [(interface, rank == 0) for rank, (_, interface) in enumerate(places)]
        settings = self._ranks.call("ring_settings", arguments)
        configs = tensorflow_configs(settings)
        store = settings[0]
        self._ring = f"{store['MASTER_ADDR']}:{store['MASTER_PORT']}"
        _log.debug("Forming a process group of %d ranks at %s", len(places), self._ring)
        environments = environment([vm for vm, _ in places])
        try:
            joined = self._ranks.call(
                "init_ring",
                [
                    (
                        {**variables, **store, **config}
                        | {"GLOO_SOCKET_IFNAME": nic, "NCCL_SOCKET_IFNAME": nic},
                    )
                    for variables, (_, nic), config in zip(
                        environments, places, configs, strict=True
                    )
                ],
            )
        except BaseException:
            self.abort_init()
            raise
        self._check_joined(joined)

    def serve_init(self, rank: int) -> None:
        """Do nothing, because rank 0 serves the store as long as the ring exists."""

    def close_rendezvous(self) -> None:
        """Do nothing, because the kernel serves no rendezvous."""


def environment(vms: list[int]) -> list[dict[str, str]]:
    """Return the variables that torchrun sets in each rank, except those about the store.

    Parameters
    ----------
    vms
        The number of each rank's VM, by rank. Ranks of the same VM are consecutive.

    Examples
    --------
    >>> for variables in environment([0, 0, 1]):
    ...     print(variables["RANK"], variables["LOCAL_RANK"], variables["GROUP_RANK"])
    0 0 0
    1 1 0
    2 0 1
    """
    ranks_of_vm = Counter(vms)
    groups = list(dict.fromkeys(vms))
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(vms)),
            "LOCAL_RANK": str(rank - vms.index(vm)),
            "LOCAL_WORLD_SIZE": str(ranks_of_vm[vm]),
            "GROUP_RANK": str(groups.index(vm)),
            "GROUP_WORLD_SIZE": str(len(groups)),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(len(vms)),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            # 2 aborts NCCL's collectives after an error. torchrun's default, 1, also ends the
            # process: a rank that lost a peer would lose its variables too.
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
        }
        for rank, vm in enumerate(vms)
    ]
