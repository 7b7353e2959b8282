"""Patches for defects of Horovod 0.28.1, applied to its source before compilation.

`recipe` solves the problems that keep Horovod from compiling, without changes to its source. The
defects here compile and only show up during training. No setting avoids them, so the
source itself is patched by exact text replacements. If a text does not occur exactly
as often as expected, the build stops: a patch that was silently skipped would
only be noticed on a user's cluster. Upstream's master branch (June 2026) still has
these defects.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from workbench.horovod_build.patch import REPOSITORY, Edit, SourcePatch
from workbench.horovod_build.process_set_patches import PROCESS_SET_PATCHES
from workbench.horovod_build.tap import TAP
from workbench.horovod_build.tap.nccl import TAP_NCCL
from workbench.horovod_build.tensorflow_patch import TENSORFLOW

FACT = "cures"
"""Key of the patches in a wheel's facts. It is fixed, since wheels in caches have it."""

PATCHES = (
    # HOROVOD_CYCLE_TIME and HOROVOD_FUSION_THRESHOLD remove their parameters from a
    # vector. The next init first resets both to their defaults in that vector, which
    # writes past its end or over the other parameter.
    SourcePatch(
        name="settings-of-an-earlier-init",
        defect="with HOROVOD_CYCLE_TIME and HOROVOD_FUSION_THRESHOLD set, every rank dies of "
        "SIGSEGV at its second hvd.init()",
        upstream=f"{REPOSITORY}/horovod/common/parameter_manager.cc#L447",
        edits=(
            Edit(
                file="horovod/common/parameter_manager.cc",
                old="""\
  } else {
    Eigen::VectorXd v = TunableParameter::BestValue();
    v[index_[variable]] = value;
""",
                new="""\
  } else if (fixed_values_.find(variable) != fixed_values_.end()) {
    fixed_values_[variable] = value;
  } else {
    Eigen::VectorXd v = TunableParameter::BestValue();
    v[index_[variable]] = value;
""",
            ),
        ),
    ),
    # Each process set (also the one of all ranks) has its own context, where
    # gloo_iface_ is never set; only the global context has read HOROVOD_GLOO_IFACE.
    # Without an interface, Gloo uses the address of the host name, which is 127.0.1.1
    # in the /etc/hosts of Debian and Ubuntu.
    SourcePatch(
        name="process-set-interface",
        defect="ranks on several machines try to connect over the loopback interface, and die, "
        "if a host's name resolves to 127.0.1.1",
        upstream=f"{REPOSITORY}/horovod/common/gloo/gloo_context.cc#L282",
        edits=(
            Edit(
                file="horovod/common/gloo/gloo_context.cc",
                # The other two initializations contain the first line too. There it is correct.
                old="""\
  device_attr.iface = gloo_iface_;
  device_attr.ai_family = AF_UNSPEC;
  auto dev = CreateDevice(device_attr);

  global_ctx = global_context.ctx;
""",
                new="""\
  device_attr.iface = global_context.gloo_iface_;
  device_attr.ai_family = AF_UNSPEC;
  auto dev = CreateDevice(device_attr);

  global_ctx = global_context.ctx;
""",
            ),
        ),
    ),
    # The ranks are written past the end of a vector that keeps the length 0. The stall
    # check uses that length, so it checks no rank.
    SourcePatch(
        name="stall-check",
        defect="the stall check never names the rank and the tensor that the others wait for",
        upstream=f"{REPOSITORY}/horovod/common/gloo/gloo_controller.cc#L92",
        edits=(
            Edit(
                file="horovod/common/gloo/gloo_controller.cc",
                old="  global_ranks_.reserve(size_);\n",
                new="  global_ranks_.resize(size_);\n",
            ),
        ),
    ),
    # When a pair of sockets fails, Gloo signals the operations on it, but omits operations in
    # progress: sends that found the connection full or closed, and the receive that has got
    # its first bytes. They keep waiting.
    SourcePatch(
        name="half-sent-buffers",
        defect="a rank that waits for a killed rank may be released only after "
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        upstream="https://github.com/facebookincubator/gloo/blob/main/gloo/transport/tcp/pair.cc",
        edits=(
            Edit(
                file="third_party/gloo/gloo/transport/tcp/pair.cc",
                old="""\
  for (auto& op : tx_) {
    if (op.buf != nullptr) {
      op.buf->signalException(ex);
    }
  }
""",
                new="""\
  for (auto& op : tx_) {
    if (op.buf != nullptr) {
      op.buf->signalException(ex);
    }
    NonOwningPtr<UnboundBuffer> buf(op.ubuf);
    if (buf) {
      buf->signalException(ex);
    }
  }

  // The receive operation under way is in no list any more.
  {
    NonOwningPtr<UnboundBuffer> buf(rx_.ubuf);
    if (buf) {
      buf->signalException(ex);
    }
  }
""",
            ),
        ),
    ),
    # When a rank is killed, the next one in the ring may fail in an operation before it has
    # announced what it receives. Its background thread continues with the next exchange of the
    # ranks' states. The neighbour has not given up the operation yet, and answers with its data.
    # Gloo's check of the length then fails in Gloo's own thread, which does not catch
    # exceptions. If the operation's buffer was announced, but no longer exists, Gloo never reads
    # from that connection again. With the patch, both are failures of the connection.
    SourcePatch(
        name="message-of-a-failed-operation",
        defect="if a rank is killed in an allreduce of four or more ranks, another may abort and "
        "lose its variables, or wait for HOROVOD_GLOO_TIMEOUT_SECONDS",
        upstream="https://github.com/facebookincubator/gloo/blob/main/gloo/transport/tcp/pair.cc",
        edits=(
            Edit(
                file="third_party/gloo/gloo/transport/tcp/pair.cc",
                old="""\
    if (!buf) {
      return -1;
    }
""",
                new="""\
    GLOO_ENFORCE(buf, "the operation that was to receive this has failed");
""",
            ),
            Edit(
                file="third_party/gloo/gloo/transport/tcp/pair.cc",
                old="""\
  if (state_ == CONNECTED) {
    handleReadWrite(events);
    return;
  }
""",
                new="""\
  if (state_ == CONNECTED) {
    try {
      handleReadWrite(events);
    } catch (const std::exception& error) {
      if (ex_ == nullptr) {
        signalException(error.what());
      }
    }
    return;
  }
""",
            ),
        ),
    ),
    # An exception of Gloo during the rendezvous leaves the background thread, which
    # terminates the process. Reported as a failed init, it becomes an exception in
    # Python. With MPI the behaviour is unchanged: its context would also need a shutdown.
    SourcePatch(
        name="missed-rendezvous",
        defect="a rank aborts, and its variables are lost, if another rank does not join it in "
        "hvd.init()",
        upstream=f"{REPOSITORY}/horovod/common/operations.cc#L440",
        edits=(
            Edit(
                file="horovod/common/operations.cc",
                old="""\
  {
    global_gloo_context.Initialize(ParseGlooIface());
  }
  if (state.control_operation == LibType::GLOO) {
    // Initializes global controller
    state.process_set_table.Initialize(global_gloo_context);
  }
#endif // HAVE_GLOO
""",
                new="""\
  try {
    global_gloo_context.Initialize(ParseGlooIface());
    if (state.control_operation == LibType::GLOO) {
      // Initializes global controller
      state.process_set_table.Initialize(global_gloo_context);
    }
  } catch (const std::exception& ex) {
    LOG(ERROR) << "Horovod could not be initialized: " << ex.what();
    if (state.control_operation == LibType::GLOO) {
      state.process_set_table.Finalize(global_gloo_context, SHUT_DOWN_ERROR);
    }
    global_gloo_context.Finalize();
    state.initialization_failed = true;
    return;
  }
#if HAVE_MPI
  if (global_mpi_context.IsEnabled() &&
      state.control_operation == LibType::GLOO) {
    // Initializes global controller
    state.process_set_table.Initialize(global_gloo_context);
  }
#endif // HAVE_MPI
#endif // HAVE_GLOO
""",
            ),
        ),
    ),
    # Without this patch, every init after a failed one fails immediately.
    SourcePatch(
        name="failed-init-again",
        defect="a rank whose hvd.init() failed once can never join a ring again",
        upstream=f"{REPOSITORY}/horovod/common/operations.cc#L894",
        edits=(
            Edit(
                file="horovod/common/operations.cc",
                old="""\
    horovod_global.initialization_done = false;
    horovod_global.background_thread =
""",
                new="""\
    horovod_global.initialization_done = false;
    horovod_global.initialization_failed = false;
    horovod_global.background_thread =
""",
            ),
        ),
    ),
    *PROCESS_SET_PATCHES,
    TAP,
    TAP_NCCL,
)
"""The patches of each build, in the order of their application."""


def patches_for(operations: Collection[str]) -> tuple[SourcePatch, ...]:
    """Return the patches of a build with these operations."""
    return (*PATCHES, TENSORFLOW) if "tensorflow" in operations else PATCHES


def apply_patches(source: Path, patches: Collection[SourcePatch] = PATCHES) -> None:
    """Apply each patch to the unpacked source, or stop the build."""
    for patch in patches:
        patch.apply(source)


def digests(patches: Collection[SourcePatch] = PATCHES) -> dict[str, str]:
    """Return the name and digest of each patch, as in the wheel's facts."""
    return {patch.name: patch.digest() for patch in patches}


def missing_patches(built: dict[str, Any] | None) -> list[SourcePatch]:
    """Return the current patches that the facts of a build do not list; without facts, all."""
    recorded = (built or {}).get(FACT, {})
    needed = patches_for((built or {}).get("operations", ()))
    return [patch for patch in needed if recorded.get(patch.name) != patch.digest()]
