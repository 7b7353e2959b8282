"""Forms the default process group of torch.distributed among processes that already run.

Rank 0 serves the store at which all connect, on its network interface for the cluster. The ranks
get the variables that torchrun sets.
"""

from __future__ import annotations

import re
from collections import Counter

from workbench.cluster.backends import Backend, tensorflow_configs
from workbench.errors import RankError, StartFailed

_PEER = (
    r"Connection (reset|refused|closed)|closed by peer|Broken pipe|Socket closed|"
    r"Application timeout caused pair closure|[Ff]ailed to recv|Software caused connection abort"
)


class DDPBackend(Backend):
    """Joins ranks in a process group of torch.distributed."""

    library = "torch.distributed"
    module_name = "dist"
    lost_peer = re.compile(_PEER)
    uneven_cure = (
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
            cure="install PyTorch there from its own packages",
        )

    @staticmethod
    def explain_numbers(numbers: str) -> str:
        """Return how torch.distributed matches collectives."""
        return (
            "Every rank waits for the others, but in different collectives: torch.distributed "
            f"matches them by how many a rank has started before ({numbers}). Interrupt the cell, "
            "and call each collective on all ranks of its group."
        )

    @staticmethod
    def is_peer_error(error: RankError) -> bool:
        """Whether it is an error of Gloo or NCCL that a connection has ended."""
        names = {"RuntimeError", "DistBackendError", "DistNetworkError"}
        return error.name in names and re.search(_PEER, error.message) is not None

    def _init_once(self) -> None:
        places = self._ranks.places
        given = [(interface, rank == 0) for rank, (_, interface) in enumerate(places)]
        settings = self._ranks.call("ring_settings", given)
        configs, store = tensorflow_configs(settings), settings[0]
        self._ring = f"{store['MASTER_ADDR']}:{store['MASTER_PORT']}"
        environments = environment([vm for vm, _ in places])
        try:
            joined = self._ranks.call(
                "init_ring",
                [
                    (
                        {**its, **store, **config}
                        | {"GLOO_SOCKET_IFNAME": nic, "NCCL_SOCKET_IFNAME": nic},
                    )
                    for its, (_, nic), config in zip(environments, places, configs, strict=True)
                ],
            )
        except BaseException:
            self.abort_init()
            raise
        self._check_joined(joined)

    def serve_init(self, rank: int) -> None:
        """Do nothing: rank 0 serves the store as long as the ring exists."""

    def close_rendezvous(self) -> None:
        """Do nothing: this kernel serves nothing."""


def environment(vms: list[int]) -> list[dict[str, str]]:
    """Return the variables that torchrun sets in each rank, without those of the store.

    Parameters
    ----------
    vms
        The number of each rank's VM, by rank. Ranks of one VM are next to each other.
    """
    here, groups = Counter(vms), list(dict.fromkeys(vms))
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(vms)),
            "LOCAL_RANK": str(rank - vms.index(vm)),
            "LOCAL_WORLD_SIZE": str(here[vm]),
            "GROUP_RANK": str(groups.index(vm)),
            "GROUP_WORLD_SIZE": str(len(groups)),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(len(vms)),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            # abort NCCL's collectives after an error; torchrun's 1 also ends the process, and with
            # it the variables of a rank whose peer was lost
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
        }
        for rank, vm in enumerate(vms)
    ]
