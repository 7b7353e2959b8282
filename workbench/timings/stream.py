"""Arrow IPC streams that are only ever appended to, and read up to where they break.

A stream is a schema and batches behind each other (the Arrow columnar format,
"IPC streaming format"). Each batch is written whole: what a reader finds is
the stream up to some batch, whenever the writer ends.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from workbench.safefiles import open_regular

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Ends a stream that was closed."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd" if pa.Codec.is_available("zstd") else None)


class StreamFile:
    """A new file that batches are appended to.

    Parameters
    ----------
    path
        Of the file, which must not be there.
    schema
        Of its batches.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._head = len(schema.serialize())
        self.size_bytes = 0

    def append(self, batch: pa.RecordBatch) -> None:
        """Append a batch, or raise an `OSError` and leave the file as it was."""
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, self._schema, options=_OPTIONS) as writer:
            writer.write_batch(batch)
        start = self._head if self.size_bytes else 0
        self._write(sink.getbuffer()[start : -len(_END)])

    def close(self) -> None:
        """End the stream; where that cannot be written, it stays as one that was cut off."""
        try:
            if self.size_bytes:
                self._write(memoryview(_END))
        finally:
            os.close(self._file)

    def _write(self, data: memoryview) -> None:
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            os.ftruncate(self._file, self.size_bytes)
            os.lseek(self._file, self.size_bytes, os.SEEK_SET)
            raise
        self.size_bytes = os.lseek(self._file, 0, os.SEEK_CUR)


class StreamReader:
    """The batches of a stream, as many as can be read.

    Parameters
    ----------
    path
        Of the file, which may still grow.

    Attributes
    ----------
    schema
        Of its batches; None where not even that can be read.
    size_bytes
        Of the file, as it was when this was made.
    closed
        The stream was ended by its writer.
    rest_bytes
        Bytes behind the last batch that can be read, once all were.
    problem
        Why they cannot be read, or an empty string.
    """

    def __init__(self, path: Path) -> None:
        self.closed = False
        self.rest_bytes = 0
        self.problem = ""
        self.schema: pa.Schema | None = None
        # no memory map: a writer may shorten the file, after a write that failed
        file = open_regular(path)
        try:
            self._file = pa.OSFile(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        self.size_bytes = self._file.size()
        self._good = 0
        message = self._next()
        if message is not None:
            try:
                schema = pa.ipc.read_schema(message)
                _ = schema.names  # decoded only here
            except (pa.ArrowException, OSError, ValueError) as error:
                self._break_off(error)
            else:
                self.schema = schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self.schema is None:
            return
        while True:
            message = self._next()
            if message is None:
                return
            try:
                batch = pa.ipc.read_record_batch(message, self.schema)
                batch.validate(full=True)
            except (pa.ArrowException, OSError) as error:
                self._break_off(error)
                return
            yield batch

    def _next(self) -> pa.Message | None:
        """Return the next message, or None where there is no whole one more."""
        self._good = self._file.tell()
        try:
            return pa.ipc.read_message(self._file)
        except EOFError:
            self.closed = self._file.tell() - self._good == len(_END)
        except (pa.ArrowException, OSError) as error:
            self._break_off(error)
        return None

    def _break_off(self, error: Exception) -> None:
        self.rest_bytes = self.size_bytes - self._good
        self.problem = str(error)
