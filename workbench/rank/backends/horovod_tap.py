"""Reads the times of collectives that Horovod records in this process.

`workbench build-horovod` adds the functions that this module calls; see
`workbench.horovod_build.tap`.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from horovod.torch import mpi_ops

from workbench.rank.backends import mpi_controller
from workbench.rank.backends.backend import Pending
from workbench.rank.recording.collectives import NONE, UNNAMED, Collected, Operation
from workbench.wire.record import TIMES

_VERSION = 1
_MAX_RECORDS = 1 << 20
"""Maximum number of unread records that Horovod keeps (88 MB)."""
_MAX_READ = 4096
"""Maximum number of records that one call of Horovod's function reads."""
_NAME_BITS = 48
"""Number of bits of the number that Horovod gives to a name."""
_MAX_DESCRIPTIONS = 256
"""Maximum number of kept descriptions of the collectives of an iteration."""
_COLUMNS = ("name", "handle", "process_set", "bytes", "status", "library", *TIMES)
"""The 64-bit integers of a record."""
_NAME, _HANDLE, _SET, _BYTES, _STATUS, _LIBRARY = range(6)
_FINISHED = _COLUMNS.index("finished")
_DESCRIBE = [_NAME, _BYTES, _SET, _LIBRARY]
"""The columns that determine the description of a collective."""
_KINDS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
_OPERATION = re.compile(
    rf"(?P<grouped>grouped_)?(?P<kind>{'|'.join(_KINDS)})\.(?P<name>.*)", re.DOTALL
)
_PENDING = re.compile(r"(?P<process_set>\d+) (?P<handle>-?\d+) (?P<name>.*)")
_PLACE_IN_GROUP = re.compile(r"_\d+of\d+$")
_NO_NAME = re.compile(r"noname(\.\d+)?")
_TENSORFLOW = re.compile(
    r"(?:.*/)?(?:Horovod(?:Grouped)?[A-Z][a-z]+(?:_(?P<tensor>.+))?|(?P<own>Distributed\w+_.+))"
)
"""Horovod's name of an op of TensorFlow: scopes, and the tensor's name if it has one."""
_OF_OPTIMIZER = re.compile(r"(?:.*/)?Distributed\w+_Allreduce.*")
"""The names of TensorFlow's ops that reduce gradients."""
Records = npt.NDArray[np.int64]
"""An array of shape (records, columns)."""
_PARTS_OF_SPARSE = {".values": ".indices", ".indices": ".values"}


class Tap:
    """The finished and the pending collectives of Horovod in this process.

    Parameters
    ----------
    library
        Horovod's library.
    members
        The ranks of each process set, except the set of all ranks.

    Attributes
    ----------
    optimizer_names
        Names that optimizers use to reduce gradients.
    world_size
        Number of ranks in the ring.
    """

    def __init__(self, library: ctypes.CDLL, members: dict[int, tuple[int, ...]]) -> None:
        library.horovod_tap_read.restype = ctypes.c_int64
        library.horovod_tap_name.restype = ctypes.c_int64
        library.horovod_tap_pending.restype = ctypes.c_int64
        library.horovod_tap_lost.restype = ctypes.c_int64
        library.horovod_tap_read.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        library.horovod_tap_enable.argtypes = [ctypes.c_int64]
        self._library = library
        self._members = members
        self._into = np.zeros((_MAX_READ, len(_COLUMNS)), np.int64)
        """Buffer for reading. Rows with a finishing time have not been copied to `_unread` yet."""
        self._address = self._into.ctypes.data
        self._unread: list[Records] = []
        """Records that were read from Horovod, but not returned by `take` yet."""
        self._reading = threading.Lock()
        self._operations: dict[bytes, tuple[Operation, ...]] = {}
        """Descriptions of collectives, by the bytes of their described records."""
        self.optimizer_names: set[str] = set()
        self.world_size = 0

    @classmethod
    def open(cls, members: dict[int, tuple[int, ...]]) -> Tap | None:
        """Return the tap of this process; None if Horovod was built without it."""
        library = mpi_ops._basics.MPI_LIB_CTYPES
        if not hasattr(library, "horovod_tap_version"):
            return None
        if library.horovod_tap_version() != _VERSION:
            return None
        return cls(library, members)

    def record(self, most: int = _MAX_RECORDS) -> None:
        """Start recording the times of collectives.

        Parameters
        ----------
        most
            Maximum number of tensors that are kept until they are read; 0 stops recording.
        """
        self._library.horovod_tap_enable(most)

    @property
    def lost(self) -> int:
        """Number of tensors that were not recorded because too many were unread."""
        return int(self._library.horovod_tap_lost())

    def ring_formed(self, world_size: int) -> None:
        """Note the number of ranks of a new ring, and discard descriptions of the earlier ring."""
        self.world_size = world_size
        self._operations = {}

    def take(self, until: int) -> Collected:
        """Return the collectives that have finished by `until` and were not returned before.

        Parameters
        ----------
        until
            A time as ``time.perf_counter_ns()``.
        """
        return self._take([until], None)[0]

    def take_each(self, untils: Sequence[int], handles: Sequence[Sequence[int]]) -> list[Collected]:
        """Return the result of `take` for each time, with only the handles for this time.

        Parameters
        ----------
        untils
            Times as ``time.perf_counter_ns()``, in increasing order.
        handles
            For each time, the handles that the rank has waited for.
        """
        return self._take(untils, handles)

    def _take(
        self, untils: Sequence[int], handles: Sequence[Sequence[int]] | None
    ) -> list[Collected]:
        with self._reading:
            records = self._read()
            if handles is None:
                part = np.zeros(len(records), np.int64)
            else:
                part = _parts(records, untils, handles)
            done = (part >= 0) & (records[:, _FINISHED] <= np.array(untils, np.int64)[part])
            rest = records[~done]
            done &= records[:, _STATUS] == 0  # a failed collective has communicated nothing
            if not done.all():
                records = records[done]
                part = part[done]
            collected = [NONE] * len(untils)
            if len(records):
                collected = self._collected(records, part, len(untils))
            self._unread = [rest]  # set only now: after a MemoryError, the next call returns all
        return collected

    def pending(self) -> Pending | None:
        """Return the unfinished collectives; None if Horovod cannot report them now.

        Any thread may call this.
        """
        size = 1 << 16
        while True:
            text = ctypes.create_string_buffer(size)
            needed = self._library.horovod_tap_pending(text, ctypes.c_int64(size))
            if needed < 0:
                return None
            if needed <= size:
                return _parse_pending(text.raw[:needed].decode(errors="replace"))
            size = 2 * needed

    def _read(self) -> Records:
        """Return all records that were not returned before, also those that a failed call read."""
        finished = self._into[:, _FINISHED]
        count = _MAX_READ
        while count == _MAX_READ:
            if not finished[0]:
                self._library.horovod_tap_read(self._address, _MAX_READ)
            count = int(np.count_nonzero(finished))
            if count:
                rows = self._into[:count]
                clear = rows.fill
                self._unread.append(rows.copy())
                clear(0)
        records = np.concatenate(self._unread) if self._unread else self._into[:0].copy()
        self._unread = [records]
        return records

    def _collected(
        self, records: Records, part: npt.NDArray[np.int64], parts: int
    ) -> list[Collected]:
        """Return the collectives of each part of `records`. A grouped collective is returned once.

        Parameters
        ----------
        records, part
            The records, and the index of the part to which each belongs.
        parts
            Number of parts.
        """
        order = _by_part_and_name(records, part)
        records = records.take(order, axis=0)
        part = part[order]
        tensors = np.ones(len(records), np.int64)
        handles = np.sort(records[:, _HANDLE])
        if (handles[1:] == handles[:-1]).any():
            records, part, tensors = _grouped(records, part)
        described = np.empty((len(records), len(_DESCRIBE) + 1), np.int64)
        described[:, :-1] = records[:, _DESCRIBE]
        described[:, -1] = tensors
        times = _times(records)
        bounds = part.searchsorted(np.arange(parts + 1)).tolist()
        return [
            self._part(described[first:end], times[:, first:end]) for first, end in pairwise(bounds)
        ]

    def _part(self, described: Records, times: npt.NDArray[np.int64]) -> Collected:
        """Return the collectives of described records, without barriers and joins.

        Parameters
        ----------
        described
            The columns `_DESCRIBE` and the number of tensors, of shape (records, columns).
        times
            The `TIMES`, of shape (TIMES, records).
        """
        key = described.tobytes()
        operations = self._operations.get(key)
        if operations is None:
            if len(self._operations) >= _MAX_DESCRIPTIONS:
                self._operations.clear()
            operations = self._operations[key] = self._describe(described)
        if len(operations) < len(described):
            times = times[:, [bool(_match(self._name(id_))) for id_ in described[:, 0].tolist()]]
        return Collected(operations, times)

    def _describe(self, described: Records) -> tuple[Operation, ...]:
        """Return the operations of described records, without barriers and joins."""
        rows = [
            (match, *others)
            for id_, *others in described.tolist()
            if (match := _match(self._name(id_)))
        ]
        operations = [self._operation(*row) for row in rows]
        names = {
            (operation.name, operation.process_set)
            for operation in operations
            if operation.kind == "allgather"
        }
        return tuple(self._final(operation, names) for operation in operations)

    def _operation(
        self, match: re.Match[str], size: int, process_set: int, library: int, tensors: int
    ) -> Operation:
        kind = match["kind"]
        library_name = self._name(library) if library >= 0 else ""
        if library_name.startswith("MPI_") and not mpi_controller.is_used():
            # Gloo's alltoall is recorded under MPI's name
            library_name = f"GLOO_{library_name.removeprefix('MPI_')}"
        if "ADASUM" in library_name:
            kind = "adasum"
        by = "optimizer" if _OF_OPTIMIZER.fullmatch(match["name"]) else "cell"
        ranks = len(self._members.get(process_set, ())) or self.world_size
        return Operation(_label(match), size, tensors, kind, process_set, ranks, by, library_name)

    def _final(self, operation: Operation, allgathers: set[tuple[str, int]]) -> Operation:
        """Return an operation with its final kind and caller.

        Two allgathers, of the values and of the indices, are the parts of a sparse allreduce.

        Parameters
        ----------
        allgathers
            Name and process set of each allgather among the operations.
        """
        stem, dot, part = operation.name.rpartition(".")
        other = stem + _PARTS_OF_SPARSE.get(dot + part, "")
        if (
            operation.kind == "allgather"
            and other != stem
            and (other, operation.process_set) in allgathers
        ):
            # only the allgather of the values counts as a tensor
            tensors = int(part == "values")
            operation = operation._replace(kind="sparse allreduce", tensors=tensors)
        else:
            stem = operation.name
        reduces = operation.kind in {"allreduce", "adasum", "sparse allreduce"}
        of_optimizer = reduces and stem in self.optimizer_names
        return operation._replace(by="optimizer") if of_optimizer else operation

    def _name(self, id_: int) -> str:
        text = ctypes.create_string_buffer(1 << 10)
        length = self._library.horovod_tap_name(
            ctypes.c_int64(id_), text, ctypes.c_int64(len(text))
        )
        return text.raw[: max(0, length)].decode(errors="replace")


def _parts(
    records: Records, untils: Sequence[int], handles: Sequence[Sequence[int]]
) -> npt.NDArray[np.int64]:
    """Return the part of each record: the index of the sequence with its handle; -1 without one.

    Negative handles belong to TensorFlow. A step of TensorFlow ends after its collectives, so these
    records are assigned by the time at which they finished.
    """
    values = records[:, _HANDLE]
    if (values < 0).any():
        index = np.array(untils).searchsorted(records[:, _FINISHED])
        index[index == len(untils)] = -1
        return np.where(values < 0, index, _waited_for(values, handles))
    return _waited_for(values, handles)


def _waited_for(
    values: npt.NDArray[np.int64], handles: Sequence[Sequence[int]]
) -> npt.NDArray[np.int64]:
    """Return the index of the sequence of handles with each value; -1 without one."""
    wanted = np.concatenate(
        [np.asarray(interval_handles, np.int64) for interval_handles in handles]
    )
    if not len(wanted):
        return np.full(len(values), -1)
    order = wanted.argsort()
    wanted = wanted[order]
    index = wanted.searchsorted(values)
    index[index == len(wanted)] = 0
    part = np.repeat(
        np.arange(len(handles)), [len(interval_handles) for interval_handles in handles]
    )
    return np.where(wanted[index] == values, part[order[index]], -1)


def _match(name: str) -> re.Match[str] | None:
    """Return the parts of a collective's name in Horovod; None for a barrier or a join."""
    return _OPERATION.fullmatch(name)


def _parse_pending(text: str) -> Pending:
    sets, _, tensors = text.partition("\n\n")
    submitted: dict[int, int] = {}
    for line in filter(None, sets.split("\n")):
        number, _, count = line.partition(" ")
        submitted[int(number)] = int(count)
    operations: dict[Any, tuple[str, int]] = {}
    for line in tensors.split("\n"):
        fields = _PENDING.fullmatch(line)  # does not match if a name has several lines
        match = fields and _match(fields["name"])
        if fields and match:
            operations[int(fields["handle"])] = _label(match), int(fields["process_set"])
    return Pending(submitted, operations)


def _label(match: re.Match[str]) -> str:
    """Return the name of a collective for users."""
    name = _PLACE_IN_GROUP.sub("", match["name"]) if match["grouped"] else match["name"]
    if op := _TENSORFLOW.fullmatch(name):
        return op["tensor"] or op["own"] or match["kind"]
    return f"{match['kind']}{UNNAMED}" if _NO_NAME.fullmatch(name) else name


def _grouped(
    records: Records, part: npt.NDArray[np.int64]
) -> tuple[Records, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return one record per handle, with its part and number of tensors, by part and name.

    A grouped collective has one record for each tensor, all with the same handle.
    """
    _, first, group_index, tensors = np.unique(
        records[:, _HANDLE], return_index=True, return_inverse=True, return_counts=True
    )
    together = records[first]
    together[:, _BYTES] = np.bincount(group_index, records[:, _BYTES])
    for column in range(_LIBRARY + 1, len(_COLUMNS)):
        ends = _COLUMNS[column] in {"ended", "finished"}
        (np.maximum if ends else np.minimum).at(
            together[:, column], group_index, records[:, column]
        )
    part = part[first]
    order = _by_part_and_name(together, part)
    return together[order], part[order], tensors[order].astype(np.int64)


def _by_part_and_name(records: Records, part: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    # one sort takes a fraction of the time of `np.lexsort`
    return (part << _NAME_BITS | records[:, _NAME]).argsort(kind="stable")


def _times(records: Records) -> npt.NDArray[np.int64]:
    """Return the times of records, of shape (TIMES, records)."""
    times = records[:, _LIBRARY + 1 :].T
    if (times > 0).all():
        return times
    submitted, responded, began, ended, finished = times
    # a time is 0 if the tensor was never executed, or has no transfer of its own
    responded = np.where(responded > 0, responded, finished)
    began = np.where(began > 0, began, responded)
    ended = np.where(ended > 0, ended, finished)
    return np.stack([submitted, responded, began, ended, finished])
