"""The default process group of torch.distributed, which ranks and cells form and destroy.

A script for torchrun calls ``init_process_group()`` itself. If a cell makes this call, the ring's
group already exists. The group is kept if it has the requested properties.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from workbench.rank.backends import flight_recorder, torch_waits
from workbench.rank.backends.earlier_groups import DEFAULT, EarlierGroups
from workbench.rank.backends.ring_sockets import RingSockets
from workbench.rank.recording.recorder import Recorder

FORM_S = 30.0
"""Time limit for forming the ring."""
_init = distributed_c10d.init_process_group
_destroy = distributed_c10d.destroy_process_group
_new_helper = distributed_c10d._new_process_group_helper
_SIGNATURE = inspect.signature(_init)
_WITH_OPTIONS = ("pg_options", "device_id", "_ranks")


def serve(interface: str) -> tuple[Any, str, int]:
    """Start a TCPStore on one network interface; return it with its address and port.

    Raises
    ------
    RuntimeError
        The interface has no address.
    """
    family, address = address_of(interface)
    with socket.create_server((address, 0), family=family, backlog=1024) as listener:
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=FORM_S),
            master_listen_fd=os.dup(listener.fileno()),
        )
    return store, address, port


def address_of(interface: str) -> tuple[socket.AddressFamily, str]:
    """Return the address of a network interface that other VMs can use, and its family.

    Raises
    ------
    RuntimeError
        The interface has no address.
    """
    interface_addresses = psutil.net_if_addrs().get(interface, ())
    for family in (socket.AF_INET, socket.AF_INET6):
        for address in (entry.address for entry in interface_addresses if entry.family == family):
            # other ranks cannot connect to a link-local address without their interface's name
            if family == socket.AF_INET or not ip_address(address).is_link_local:
                return family, address
    raise RuntimeError(f"network interface {interface!r} has no address on this VM")


def own_backend() -> str:
    """Return the backend of the ring: Gloo, and NCCL too if there is a GPU."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and _has_nccl() else "gloo"


def _has_nccl() -> bool:
    return bool(dist.is_nccl_available())


class ProcessGroups:
    """Forms and destroys the default process group, for the ring and for cells.

    Parameters
    ----------
    recorder
        Holds the records of the running cell.
    moved
        Called with each DDP model that `move_models` moves, and its earlier group.

    Attributes
    ----------
    sockets
        The sockets of the current ring and of all groups that cells have formed since.
    destroyed
        Number of times that all groups were destroyed. Later groups have the same names.
    """

    def __init__(self, recorder: Recorder, moved: Callable[[Any, Any], None]) -> None:
        self._recorder = recorder
        self._moved = moved
        self.sockets = RingSockets(listeners=False)
        self.destroyed = 0
        self._store: Any = None
        """The connection to the store of the ring."""
        self._ready: Any = None
        """The ring's group."""
        self._formed_in: Any = None
        """Records of the cell that has formed the default group."""
        self._inits = 0
        """Number of initializations of PyTorch by this process in this ring."""
        self._earlier = EarlierGroups()
        self._ended: tuple[Any, ...] = ()
        """Groups that have ended with unfinished collectives, or before their users, such as a DDP
        model. Freeing a group joins its threads, which may need the GIL to free the tensors of a
        finished collective. A model that frees the last reference holds the GIL."""

    def install(self) -> None:
        """Replace the functions that cells call to form and destroy groups."""
        for original, method in (
            (_init, self.init_process_group),
            (_destroy, self.destroy_process_group),
        ):
            replacement = torch_waits.timed(original, method)
            setattr(dist, original.__name__, replacement)
            setattr(distributed_c10d, original.__name__, replacement)
        helper = torch_waits.timed(_new_helper, self._new_process_group_helper)
        distributed_c10d._new_process_group_helper = helper
        torch_waits.install()
        self._earlier.install()

    def form(self, ring: str, check: Callable[[], None] = lambda: None) -> float:
        """Form the group of a ring, and check it with a first collective.

        Parameters
        ----------
        ring
            Identifies the ring.
        check
            Called when `sockets` counts as forming; raises an error if the ring must not be formed.
        """
        self.sockets = RingSockets(ring, listeners=False)
        self._inits = 0
        flight_recorder.enable()
        address = os.environ["MASTER_ADDR"]
        port = int(os.environ["MASTER_PORT"])
        with self.sockets:
            check()
            # the store listens already unless rank 0 has ended, and PyTorch would retry for long
            socket.create_connection((address, port), FORM_S).close()
            self._store = dist.TCPStore(
                address, port, is_master=False, timeout=timedelta(seconds=FORM_S)
            )
            self._init_again(own_backend(), timeout=timedelta(seconds=FORM_S))
            total = torch.ones(1, dtype=torch.float32, device="cpu")
            dist.all_reduce(total)
            every: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(every, (self.sockets.ends(), self._earlier.described()))
            self.sockets.peers = {(address, port), *(end for ends, _ in every for end in ends)}
            self._earlier.form([groups for _, groups in every], timedelta(seconds=FORM_S))
        self._ready = dist.group.WORLD
        usual = distributed_c10d.default_pg_timeout
        self._store.set_timeout(usual)
        distributed_c10d._set_pg_timeout(usual, self._ready)
        return float(total.item())

    def abort_on_gpu(self) -> None:
        """Abort the collectives of NCCL, in any thread; may take seconds."""
        gpu = torch.device("cuda")
        if not (torch.cuda.is_available() and _has_nccl()):
            return
        for group in self.names().values():
            with contextlib.suppress(RuntimeError):  # the main thread has destroyed the group
                if gpu in group._device_types:
                    backend = group._get_backend(gpu)
                    if hasattr(backend, "abort"):
                        backend.abort()

    def end(self) -> None:
        """Leave all groups, without waiting for other ranks."""
        self.sockets.shut_down()
        if dist.is_initialized():
            if self._ready is not None:
                self._earlier.keep()
            self.abort_on_gpu()  # otherwise NCCL waits for its unfinished collectives
            self._destroy_all()
        distributed_c10d._world.group_count = 0  # also after an init that has failed

    def names(self) -> dict[str, Any]:
        """Return the groups of this process by name."""
        return {name: group for group, name in list(distributed_c10d._world.pg_names.items())}

    @property
    def usable(self) -> bool:
        """Whether there is a default group, and its connections if it is the ring's."""
        if not dist.is_initialized():
            return False
        return dist.group.WORLD is not self._ready or self.sockets.are_connected()

    def init_process_group(self, *args: Any, **options: Any) -> None:
        """Initialize PyTorch's default process group, or keep the ring's group."""
        arguments = _SIGNATURE.bind(*args, **options).arguments
        environment = (
            arguments.get("init_method") in {None, "env://"} and arguments.get("store") is None
        )
        if dist.is_initialized() and dist.group.WORLD is self._ready:
            ring_size_and_rank = (int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
            same = arguments.get("world_size", -1) in {-1, ring_size_and_rank[0]}
            same = same and arguments.get("rank", -1) in {-1, ring_size_and_rank[1]}
            plain = not any(arguments.get(name) is not None for name in _WITH_OPTIONS)
            usual = arguments.get("backend") in {None, own_backend()}
            if environment and same and plain and usual:
                if (timeout := arguments.get("timeout")) is not None:
                    distributed_c10d._set_pg_timeout(timeout, self._ready)
                return
            self._destroy_all()
        elif dist.is_initialized() and self._formed_in is not self._recorder.records:
            self._destroy_all()  # the cell, or an earlier one, runs again
        with self.sockets.grows():
            if environment and not dist.is_initialized():
                self._init_again(**arguments)
            else:
                with _same_excepthook():
                    _init(**arguments)
        self._formed_in = self._recorder.records
        self.move_models()

    def destroy_process_group(self, group: Any = None) -> None:
        """Destroy a process group; by default all groups."""
        if (group is None or group is dist.group.WORLD) and dist.is_initialized():
            self._destroy_all()
        else:
            _destroy(group)
            if isinstance(group, dist.ProcessGroup):
                self._ended = (*_used(self._ended), group)

    def move_models(self) -> None:
        """Replace references to earlier groups with their successors.

        DDP models get at least the default group, because all ranks have the whole model. Each
        rank has only a part of an FSDP2 model.
        """
        world = dist.group.WORLD
        for candidate in gc.get_objects():
            if not issubclass(type(candidate), DistributedDataParallel):
                continue
            before = getattr(candidate, "process_group", None)
            if before is None or before is world or not hasattr(candidate, "reducer"):
                continue
            if before in distributed_c10d._world.pg_map:
                continue
            after = self._earlier.successor(before)
            if after is not None or before.group_name == DEFAULT:
                candidate._update_process_group(after or world)
                self._moved(candidate, before)
        self._earlier.replace()

    def _init_again(
        self,
        backend: str | None = None,
        *,
        rank: int = -1,
        world_size: int = -1,
        timeout: timedelta | None = None,
        **options: Any,
    ) -> None:
        """Initialize PyTorch with torchrun's variables once all ranks have called this.

        PyTorch uses the same keys of the store in each init of a process. A rank might then
        connect to the address that another rank had in an earlier init. PyTorch also cannot be
        stopped while it waits for the connection of another rank.
        """
        arguments = {
            name: value for name, value in options.items() if name not in {"init_method", "store"}
        }
        limit = timeout or _usual_timeout(backend, options.get("device_id"))
        self._store.set_timeout(limit)
        self._inits += 1
        store = dist.PrefixStore(f"workbench/{self._inits}", self._store)
        rank = rank if rank >= 0 else int(os.environ["RANK"])
        world_size = world_size if world_size >= 0 else int(os.environ["WORLD_SIZE"])
        if store.add("arrived", 1) == world_size:
            store.set("complete", "")
        store.wait(["complete"])
        with _same_excepthook():
            _init(
                backend,
                timeout=min(limit, timedelta(seconds=FORM_S)),
                world_size=world_size,
                rank=rank,
                store=store,
                **arguments,
            )
        distributed_c10d._set_pg_timeout(limit)

    def _destroy_all(self) -> None:
        groups = list(distributed_c10d._world.pg_names)
        self._ready = None
        unfinished = bool(flight_recorder.unfinished())
        self.destroyed += 1
        _destroy()
        self._ended = tuple(groups) if unfinished else _used(groups)
        flight_recorder.forget()
        torch_waits.forget()

    def _new_process_group_helper(self, *args: Any, **options: Any) -> Any:
        if dist.group.WORLD is None:  # the call forms the default group
            return _new_helper(*args, **options)
        with self.sockets.grows():
            return _new_helper(*args, **options)


def _used(groups: Sequence[Any]) -> tuple[Any, ...]:
    """Return the groups that other objects refer to."""
    (references,) = [sys.getrefcount(group) for group in [object()]]
    return tuple([group for group in groups if sys.getrefcount(group) > references])


@contextmanager
def _same_excepthook() -> Iterator[None]:
    """Restore ``sys.excepthook`` after the body, because each init of PyTorch wraps it again."""
    before = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = before


def _usual_timeout(backend: str | None, device: Any) -> timedelta:
    """Return PyTorch's default timeout, which is shorter for NCCL alone."""
    if backend is None and device is not None:
        kind = "cuda" if isinstance(device, int) else device.type
        backend = dist.Backend.default_device_backend_map.get(kind)
    timeout: timedelta = distributed_c10d._get_default_timeout(dist.Backend(backend or "undefined"))
    return timeout
