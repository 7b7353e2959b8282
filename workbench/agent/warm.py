"""The warm process: it keeps the ranks' modules loaded, and forks agents for later starts.

The first agent of a kernel becomes the warm process: once all modules are loaded, and before a rank
is forked, the agent continues in a child process. The first start therefore pays only for one fork.
For each later start on this machine, the warm process forks an agent or ipyparallel's controller,
which would otherwise be started as ``python -m MODULE ARGUMENTS``.

The process ends with its kernel, when the kernel closes the channel, and after an idle time. It
has one thread, and never uses CUDA.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from workbench.wire.agent_messages import Load
from workbench.wire.warm_messages import (
    PACKET_BYTES,
    Ended,
    Fork,
    Settings,
    Warm,
    decode,
    encode,
)

MODULE = "workbench.agent.warm"
"""The module name in the arguments that ``ps`` shows for the warm process."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
_NAME = "workbench-warm"
_LOAD_AFTER_S = 1.0
"""After a start, the modules of `Settings` are loaded once there was no work for this time."""
_MAX_CONSENT_S = 10.0
_DESCRIPTORS = 3
_ARG_START_INDEX = 45
"""Index of `arg_start` among the fields of /proc/PID/stat after the name; see proc(5)."""
_RANK_MODULES = (
    "workbench.rank.engine",
    "workbench.rank.calls",
    "ipykernel.debugger",
    "IPython.core.completerlib",
    "IPython.extensions.storemagic",
)
"""Modules that each rank loads when its engine starts, in addition to the agent's modules."""


def threads_per_rank(slots: int) -> int | None:
    """Return the number of threads per rank; None if the user has set it in the environment.

    Each rank gets an equal share of the cores, but at least one.

    Examples
    --------
    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, clear=True):
    ...     threads_per_rank(10_000)
    1
    """
    if any(name in os.environ for name in THREAD_VARIABLES):
        return None
    return _share_of_cores(slots)


@contextlib.contextmanager
def cuda_untouched() -> Iterator[None]:
    """Make PyTorch query NVML, not CUDA, if code in the `with` block asks whether a GPU exists.

    This matters because a process that has initialized CUDA cannot be forked into ranks that use a
    GPU: "Cannot re-initialize CUDA in forked subprocess".

    Examples
    --------
    >>> with cuda_untouched():
    ...     os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
    '1'
    """
    previous = os.environ.get(_NVML_CHECK)
    os.environ[_NVML_CHECK] = "1"
    try:
        yield
    finally:
        if previous is None:
            del os.environ[_NVML_CHECK]
        else:
            os.environ[_NVML_CHECK] = previous


class ForkServer:
    """Forks processes for the kernel. It runs in the warm process.

    Parameters
    ----------
    channel
        The descriptor of a socket that is connected to the kernel.
    """

    def __init__(self, channel: int) -> None:
        self._channel = socket.socket(fileno=channel)
        self._channel.set_inheritable(False)
        self._user_thread_variables = set(THREAD_VARIABLES) & set(os.environ)
        """The environment variables with which the user has set a number of threads."""
        self._load = Load(0, "")
        self._threads: int | None = None
        self._settings = Settings(0, 0.0, [])
        self._kernel = -1
        self._files: dict[str, tuple[int, ...]] = {}
        self._children: dict[int, int] = {}
        """The id of each forked process, by a descriptor that becomes readable when it ends."""
        self._idle_since = 0.0

    def fork_agent(self, load: Load, threads: int | None, inherited: list[int]) -> bool:
        """Fork the agent, and become the warm process.

        Return True in the child process, which continues as the agent. This process is then the
        warm process and never returns from this call. If the fork is not possible, this process
        remains the agent, and the call returns False.

        Parameters
        ----------
        load
            The message that has told the agent what to load.
        threads
            The number of threads of each rank; None if the user has set the number.
        inherited
            Descriptors of the agent. The warm process closes them.
        """
        self._load = load
        self._threads = threads
        try:
            settings = decode(self._channel.recv(PACKET_BYTES, socket.MSG_DONTWAIT))
            if threading.active_count() > 1 or not isinstance(settings, Settings):
                raise ValueError("this process cannot be forked safely")
            self._settings = settings
            self._kernel = os.pidfd_open(settings.kernel)
            if os.getppid() != settings.kernel:
                raise ValueError("the kernel has ended")
            sys.stderr.flush()
            agent = os.fork()
        except (OSError, ValueError, TypeError):
            self._channel.close()
            if self._kernel >= 0:
                os.close(self._kernel)
            return False
        if agent == 0:
            os.setsid()
            option = sys.orig_argv.index("--warm")
            _show_as(sys.orig_argv[:option])
            self._channel.close()
            os.close(self._kernel)
            return True
        try:
            self._serve(agent, inherited)
        finally:
            os._exit(0)

    def _serve(self, agent: int, inherited: list[int]) -> None:
        """Fork processes until the kernel ends or closes the channel, or the idle time is over."""
        self._become_warm(inherited)
        self._files = _file_identities()
        with selectors.EpollSelector() as selector:
            self._selector = selector
            selector.register(self._kernel, selectors.EVENT_READ)
            selector.register(self._channel, selectors.EVENT_READ)
            self._watch(agent)
            self._send(Warm(agent, psutil.Process(agent).create_time()))
            while self._step():
                continue

    def _step(self) -> bool:
        """Wait for one event, handle it, and return whether to continue."""
        ready = [key.fileobj for key, _ in self._selector.select(self._wait_s())]
        if self._kernel in ready:
            return False
        for descriptor in self._children.keys() & set(ready):
            self._reap(descriptor)
        if self._channel in ready:
            return self._receive()
        if ready:
            return True
        if self._settings.modules:
            self._load_modules()
            return True
        return bool(self._children)

    def _wait_s(self) -> float | None:
        """Return the maximum time to wait for an event; None for any time."""
        if self._settings.modules:
            return _LOAD_AFTER_S
        if self._children:
            return None
        return max(0.0, self._idle_since + self._settings.idle_s - time.monotonic())

    def _become_warm(self, inherited: list[int]) -> None:
        """Release signals, descriptors and output, which now belong to the agent's process."""
        signal.set_wakeup_fd(-1)
        for signal_number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signal_number, signal.SIG_DFL)
        for descriptor in inherited:
            os.close(descriptor)
        null = os.open(os.devnull, os.O_RDWR)
        for target in (0, 1, 2):
            os.dup2(null, target)
        os.close(null)
        _show_as([sys.executable, "-m", MODULE, str(self._settings.kernel)])
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(_NAME)

    def _load_modules(self) -> None:
        """Import the modules of `Settings` and of the ranks."""
        modules = [*self._settings.modules, *_RANK_MODULES]
        self._settings = replace(self._settings, modules=[])
        gc.disable()
        for name in modules:
            with contextlib.suppress(Exception), cuda_untouched():
                importlib.import_module(name)
        gc.freeze()
        gc.enable()
        self._files = {**_file_identities(), **self._files}

    def _receive(self) -> bool:
        """Handle a message of the kernel; return False if the kernel has closed the channel."""
        packet, descriptors, _, _ = socket.recv_fds(self._channel, PACKET_BYTES, _DESCRIPTORS)
        try:
            if not packet:
                return False
            fork = decode(packet)
            self._settings = replace(self._settings, idle_s=fork.idle_s)
            # If nothing is forked, closing the descriptors tells the kernel to start the process
            # itself.
            if len(descriptors) == _DESCRIPTORS and self._is_current(fork):
                self._fork(fork, descriptors)
        except OSError:  # out of memory or processes
            pass
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._idle_since = time.monotonic()
        return True

    def _is_current(self, fork: Fork) -> bool:
        """Return whether a fork would have the same modules as a process that starts now."""
        if any(_identity(path) != identity for path, identity in self._files.items()):
            return False
        if fork.load is None:
            return True
        threads = None if self._user_thread_variables else _share_of_cores(fork.load.slots)
        return (fork.load.backend, threads) == (self._load.backend, self._threads)

    def _fork(self, fork: Fork, descriptors: list[int]) -> None:
        """Fork a process, and run its module there."""
        child = os.fork()
        if child:
            try:
                self._watch(child)
            except OSError:  # the end of the child could not be reported
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise
            return
        code = 1
        try:
            code = self._run(fork, *descriptors)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 - the warm process's code must not continue here
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _run(self, fork: Fork, server: int, log: int, starter: int) -> int:
        """Become the process of ``python -m MODULE ARGUMENTS``."""
        os.setsid()
        inherited = [
            self._channel.fileno(),
            self._kernel,
            self._selector.fileno(),
            *self._children,
        ]
        for descriptor in inherited:
            os.close(descriptor)
        with socket.socket(fileno=starter) as consent:
            consent.settimeout(_MAX_CONSENT_S)
            consent.sendall(str(os.getpid()).encode())
            if not consent.recv(1):  # the kernel has started a process itself
                return 0
        for target, source in ((0, server), (1, log), (2, log)):
            os.dup2(source, target)
        os.close(server)
        os.close(log)
        for name in set(THREAD_VARIABLES) - self._user_thread_variables:
            os.environ.pop(name, None)  # set again by the next `Load`
        for name, value in fork.environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        importlib.invalidate_caches()
        _show_as([sys.executable, "-m", fork.module, *fork.arguments])
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(Path(sys.executable).name)
        module = sys.modules["__main__"]
        if getattr(module.__spec__, "name", None) != fork.module:
            module = importlib.import_module(fork.module)
        sys.argv = [str(module.__file__), *fork.arguments]
        module.main()
        return 0

    def _watch(self, child: int) -> None:
        """Watch for the end of a forked process."""
        descriptor = os.pidfd_open(child)
        self._children[descriptor] = child
        self._selector.register(descriptor, selectors.EVENT_READ)

    def _reap(self, descriptor: int) -> None:
        """Report to the kernel how a forked process has ended."""
        self._selector.unregister(descriptor)
        os.close(descriptor)
        child = self._children.pop(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self._idle_since = time.monotonic()
        self._send(Ended(child, code))

    def _send(self, message: Warm | Ended) -> None:
        with contextlib.suppress(OSError):  # the kernel has ended, or does not read the channel
            self._channel.send(encode(message), socket.MSG_DONTWAIT)


def _share_of_cores(slots: int) -> int:
    return max(1, len(os.sched_getaffinity(0)) // slots)


def _file_identities() -> dict[str, tuple[int, ...]]:
    """Return the identities of all loaded modules' files, and of the folders of packages.

    If a folder has changed, a package was installed or removed.
    """
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    paths = {path for path in loaded if isinstance(path, str)}
    return {path: _identity(path) for path in {*paths, *_package_folders()}}


def _package_folders() -> set[str]:
    return {path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}}


def _identity(path: str) -> tuple[int, ...]:
    """Return values (mtime, size, inode) that differ after a file was replaced or edited.

    They are empty if the file does not exist.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands of files, between two starts
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _show_as(arguments: list[str]) -> None:
    """Make ``ps`` show other arguments for this process, cut off to the available space."""
    sys.orig_argv = arguments
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start = int(fields[_ARG_START_INDEX])
    end = int(fields[_ARG_START_INDEX + 1])
    text = b"\0".join(map(os.fsencode, arguments))[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))
