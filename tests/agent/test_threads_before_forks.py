"""The agent forks ranks only when the thread that has imported PyTorch has ended completely."""

import ctypes
import threading
from pathlib import Path

from timers import InThread

from workbench.agent.rank_processes import wait_until_ended

ENDS_US = 2_000_000


def exists(thread):
    return Path(f"/proc/self/task/{thread.native_id}").exists()


def test_a_thread_that_takes_long_to_end():
    """A destructor in C, as MKL has, runs after Python's `join` has returned."""
    libc = ctypes.CDLL(None)
    key = ctypes.c_uint()
    assert (
        libc.pthread_key_create(ctypes.byref(key), ctypes.cast(libc.usleep, ctypes.c_void_p)) == 0
    )
    ready = threading.Event()

    def work():
        libc.pthread_setspecific(key, ctypes.c_void_p(ENDS_US))
        ready.set()

    thread = InThread(work).thread
    thread.join()
    assert ready.is_set()
    assert exists(thread)
    wait_until_ended(thread)
    assert not exists(thread)
