"""A disk that is full."""

import contextlib
import os
import subprocess

import pytest


@contextlib.contextmanager
def small_disk(folder):
    """A file system of 64 KB."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a file system")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "small", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk):
    """Fill a disk to its last byte; return the file whose removal frees space."""
    full = disk / "full"
    with contextlib.suppress(OSError), full.open("wb", buffering=0) as file:
        while file.write(bytes(512)):
            pass
    return full
