"""The default process group of torch.distributed, which ranks and cells form and destroy.

A script for torchrun calls ``init_process_group()`` itself. In a cell that finds the ring's group,
and keeps it if that is what it asks for.
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
"""How long the ranks may take to form the ring."""
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
            # other ranks cannot connect to such a one without their own interface's name
            if family == socket.AF_INET or not ip_address(address).is_link_local:
                return family, address
    raise RuntimeError(f"network interface {interface!r} has no address on this VM")


def own_backend() -> str:
    """Return the backend of the ring: also NCCL if there is a GPU."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and _has_nccl() else "gloo"


def _has_nccl() -> bool:
    return bool(dist.is_nccl_available())


class ProcessGroups:
    """Forms and destroys the default process group, for the ring and for cells.

    Parameters
    ----------
    recorder
        Knows which cell runs.
    moved
        Called with each DDP model that `move_models` moves, and its earlier group.

    Attributes
    ----------
    sockets
        Those of the current ring, and of all groups that cells have formed since.
    destroyed
        How often all groups were destroyed. Groups that are formed later have the same names.
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
        """The records of the cell that has formed the default group."""
        self._inits = 0
        """How often this process has initialized PyTorch in this ring."""
        self._earlier = EarlierGroups()
        self._ended: tuple[Any, ...] = ()
        """Groups that ended with unfinished collectives, or before what uses them, such as a DDP
        model. Freeing a group joins its threads, which may need Python's lock to free the tensors
        of a collective that is done. A model that frees the last reference holds that lock."""

    def install(self) -> None:
        """Replace the functions with which cells form and destroy groups."""
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
            Called when `sockets` counts as forming; raises an error if it must not be formed.
        """
        self.sockets = RingSockets(ring, listeners=False)
        self._inits = 0
        flight_recorder.enable()
        address = os.environ["MASTER_ADDR"]
        port = int(os.environ["MASTER_PORT"])
        with self.sockets:
            check()
            # PyTorch tries for long, although the store already listens unless rank 0 has ended
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
            with contextlib.suppress(RuntimeError):  # destroyed meanwhile
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
        """Initialize PyTorch's default process group, or keep that of the ring."""
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
        """Destroy a process group, by default all."""
        if (group is None or group is dist.group.WORLD) and dist.is_initialized():
            self._destroy_all()
        else:
            _destroy(group)
            if isinstance(group, dist.ProcessGroup):
                self._ended = (*_used(self._ended), group)

    def move_models(self) -> None:
        """Let what uses earlier groups use those formed instead; DDP models at least the default.

        All ranks of a ring have the model of DDP, but each has a part of that of FSDP2.
        """
        world = dist.group.WORLD
        for thing in gc.get_objects():
            if not issubclass(type(thing), DistributedDataParallel):
                continue
            before = getattr(thing, "process_group", None)
            if before is None or before is world or not hasattr(thing, "reducer"):
                continue
            if before in distributed_c10d._world.pg_map:
                continue
            after = self._earlier.successor(before)
            if after is not None or before.group_name == DEFAULT:
                thing._update_process_group(after or world)
                self._moved(thing, before)
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
        """Initialize PyTorch as torchrun's variables say, when all ranks have called this.

        PyTorch uses the same keys of the store in each init of a process. Then a rank might
        connect to the address that another rank had in an earlier init. And it cannot be stopped
        while it waits for the connection of another rank.
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
        if dist.group.WORLD is None:  # it forms the default group
            return _new_helper(*args, **options)
        with self.sockets.grows():
            return _new_helper(*args, **options)


def _used(groups: Sequence[Any]) -> tuple[Any, ...]:
    """Return those of some groups to which something else refers."""
    (references,) = [sys.getrefcount(group) for group in [object()]]
    return tuple([group for group in groups if sys.getrefcount(group) > references])


@contextmanager
def _same_excepthook() -> Iterator[None]:
    """Restore the handler of errors, which each init of PyTorch wraps again."""
    before = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = before


def _usual_timeout(backend: str | None, device: Any) -> timedelta:
    """Return PyTorch's default, which is shorter for NCCL alone."""
    if backend is None and device is not None:
        kind = "cuda" if isinstance(device, int) else device.type
        backend = dist.Backend.default_device_backend_map.get(kind)
    timeout: timedelta = distributed_c10d._get_default_timeout(dist.Backend(backend or "undefined"))
    return timeout
