"""Defects of Horovod 0.28.1 that are cured in its source before it is compiled.

What keeps it from compiling is met around the source (`recipe`). These defects
compile, and are met only by whoever trains: no setting reaches them, so the
source itself is changed, by exact replacements. A text that is not there as
often as expected stops the build: a cure that silently did not happen would be
found out on somebody's cluster. Upstream's master branch (June 2026) has both
defects still.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.horovod_build.failure import failed
from workbench.horovod_build.recipe import VERSION

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


@dataclass(frozen=True)
class Cure:
    """One exact replacement in the unpacked source.

    Attributes
    ----------
    name
        Under which the wheel's record lists it.
    defect
        What a user meets without it.
    upstream
        Where the defect stands in upstream's repository.
    file
        Below the source's folder.
    old, new
        The text that is there, and what takes its place.
    times
        How often `old` must be in the file.
    """

    name: str
    defect: str
    upstream: str
    file: str
    old: str
    new: str
    times: int = 1

    def apply(self, source: Path) -> None:
        """Change the file below `source`.

        Raises
        ------
        BuildFailed
            Where the file is not there, or has not the text as often as expected.
        """
        path = source / self.file
        try:
            content = path.read_bytes()
        except OSError:
            raise self._no_match(f"{self.file} cannot be read.") from None
        found = content.count(self.old.encode())
        if found != self.times:
            raise self._no_match(
                f"{self.file} has the text that is to be replaced {found} times, not {self.times}."
            )
        path.write_bytes(content.replace(self.old.encode(), self.new.encode()))

    def digest(self) -> str:
        """Return what changes whenever the cure does."""
        exact = (self.file, self.old, self.new, str(self.times))
        return hashlib.sha256("\0".join(exact).encode()).hexdigest()[:16]

    def _no_match(self, what: str) -> Exception:
        return failed(
            f"the cure `{self.name}` does not match this source: {what}",
            f"It is written for Horovod {VERSION}. Where recipe.py names another release, see "
            f"whether that has the defect still ({self.upstream}), and adapt the cure in "
            "cures.py or drop it; otherwise install Gradient Workbench anew.",
        )


_REPOSITORY = "https://github.com/horovod/horovod/blob/v0.28.1"

CURES = (
    # HOROVOD_CYCLE_TIME and HOROVOD_FUSION_THRESHOLD take their parameters out of a
    # vector. The next init sets both to their defaults first, in that vector: behind
    # its end, or in the place of the other.
    Cure(
        name="settings-of-an-earlier-init",
        defect="with HOROVOD_CYCLE_TIME and HOROVOD_FUSION_THRESHOLD set, every rank dies of "
        "SIGSEGV at its second hvd.init()",
        upstream=f"{_REPOSITORY}/horovod/common/parameter_manager.cc#L447",
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
    # A process set, the one of all ranks too, has a context of its own, whose
    # member of this name nobody sets; only the context that it is made from has
    # read HOROVOD_GLOO_IFACE. Given no interface, Gloo takes the address of the
    # host's name, and Debian's and Ubuntu's /etc/hosts make that 127.0.1.1.
    Cure(
        name="process-set-interface",
        defect="ranks on several machines meet on the loopback interface, and die, where a "
        "host's name resolves to 127.0.1.1",
        upstream=f"{_REPOSITORY}/horovod/common/gloo/gloo_context.cc#L282",
        file="horovod/common/gloo/gloo_context.cc",
        # The first of these lines alone is in the other two initialisations too, rightly.
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
    # The ranks are written behind the end of a vector that stays empty, so that
    # the stall check, which asks for its length, looks for none.
    Cure(
        name="stall-check",
        defect="the stall check never names the rank and the tensor that all others wait for",
        upstream=f"{_REPOSITORY}/horovod/common/gloo/gloo_controller.cc#L92",
        file="horovod/common/gloo/gloo_controller.cc",
        old="  global_ranks_.reserve(size_);\n",
        new="  global_ranks_.resize(size_);\n",
    ),
    # Gloo tells the operations on a pair of sockets that the pair failed. Its list
    # of them leaves out the ones half way: sends that met a full or a closed
    # connection, and the receive whose first bytes have come. They wait on.
    Cure(
        name="half-sent-buffers",
        defect="a rank that waits for one that was killed may be freed only after "
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        upstream="https://github.com/facebookincubator/gloo/blob/main/gloo/transport/tcp/pair.cc",
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
    # What Gloo throws while ranks meet leaves the background thread, which ends
    # the process. Told as a failed init, it is an exception in Python. MPI's
    # context would have to be taken down too: there it stays as it was.
    Cure(
        name="missed-rendezvous",
        defect="a rank that another did not come to meet in hvd.init() aborts, and all that "
        "it held is lost",
        upstream=f"{_REPOSITORY}/horovod/common/operations.cc#L440",
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
    # Without this, every init after a failed one counts as failed at once.
    Cure(
        name="failed-init-again",
        defect="a rank whose hvd.init() failed once cannot join a ring any more",
        upstream=f"{_REPOSITORY}/horovod/common/operations.cc#L894",
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
    # At its end the background thread agrees with all ranks on the removal of each
    # process set. What Gloo throws where a rank is gone left the thread, which ends
    # the process. Without the others, each rank removes its sets on its own.
    Cure(
        name="process-set-of-a-lost-rank",
        defect="a rank that is killed while a process set exists takes the other ranks along",
        upstream=f"{_REPOSITORY}/horovod/common/process_set.cc#L213",
        file="horovod/common/process_set.cc",
        old="""\
    MarkProcessSetForRemoval(id);
    // Block until all processes have been able to finalize and deregister
    // this process set.
    while (true) {
      InitializeRegisteredAndRemoveMarkedIfReady_(context, status);
      if (ProcessSetHasJustBeenRemoved()) {
        break;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }
""",
        new="""\
    MarkProcessSetForRemoval(id);
    // Block until all processes have been able to finalize and deregister
    // this process set.
    try {
      while (true) {
        InitializeRegisteredAndRemoveMarkedIfReady_(context, status);
        if (ProcessSetHasJustBeenRemoved()) {
          break;
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
    } catch (const std::exception& ex) {
      LOG(DEBUG) << "Process sets are removed without the other ranks: "
                 << ex.what();
      break;
    }
  }
  for (auto id : ids_copy) {
    if (id != 0 && Contains(id)) {
      Get(id).Finalize(status);
      DeregisterProcessSet(id);
    }
  }
  id_to_be_removed_ = NO_PENDING_REMOVAL;
""",
    ),
    # The set of all ranks outlives its ring. A rank that joined stays a joined one in
    # the next, and takes the tensor of its join(), which has ended, for each allreduce.
    Cure(
        name="join-of-an-earlier-init",
        defect="a rank that is freed from hvd.join() by a shutdown dies of SIGSEGV in the first "
        "collective after the next hvd.init()",
        upstream=f"{_REPOSITORY}/horovod/common/process_set.cc#L150",
        file="horovod/common/process_set.cc",
        old="""\
  registered_global_ranks.clear();
  initialization_done = false;
}
""",
        new="""\
  registered_global_ranks.clear();
  joined = false;
  joined_size = 0;
  last_joined_rank = -1;
  initialization_done = false;
}
""",
    ),
    # These two wait in the caller's thread, for a flag that is up for less than the
    # millisecond they sleep where the shutdown is quick; the first also reads the
    # process set that the shutdown has freed.
    Cure(
        name="process-set-added-at-shutdown",
        defect="hvd.add_process_set() may wait for ever, or seem to succeed, when a rank is lost",
        upstream=f"{_REPOSITORY}/horovod/common/operations.cc#L1287",
        file="horovod/common/operations.cc",
        old="""\
    if (process_set->initialization_done) {
      return id;
    }
    if (horovod_global.shut_down) {
      return HOROVOD_PROCESS_SET_ERROR_SHUTDOWN;
    }
""",
        new="""\
    {
      std::lock_guard<std::recursive_mutex> table_lock(
          horovod_global.process_set_table.mutex);
      if (horovod_global.shut_down || !horovod_global.initialization_done ||
          !horovod_global.process_set_table.Contains(id)) {
        return HOROVOD_PROCESS_SET_ERROR_SHUTDOWN;
      }
      if (horovod_global.process_set_table.Get(id).initialization_done) {
        return id;
      }
    }
""",
    ),
    Cure(
        name="process-set-removed-at-shutdown",
        defect="hvd.remove_process_set() may wait for ever when a rank is lost",
        upstream=f"{_REPOSITORY}/horovod/common/operations.cc#L1318",
        file="horovod/common/operations.cc",
        old="""\
      return process_set_id;
    }
    if (horovod_global.shut_down) {
      return HOROVOD_PROCESS_SET_ERROR_SHUTDOWN;
    }
""",
        new="""\
      return process_set_id;
    }
    if (horovod_global.shut_down || !horovod_global.initialization_done) {
      return HOROVOD_PROCESS_SET_ERROR_SHUTDOWN;
    }
""",
    ),
)
"""All that are applied."""


def apply_cures(source: Path, cures: Collection[Cure] = CURES) -> None:
    """Apply each cure to the unpacked source, or stop the build."""
    for cure in cures:
        cure.apply(source)


def record(cures: Collection[Cure] = CURES) -> dict[str, str]:
    """Return the cures as the wheel's facts list them: name and digest."""
    return {cure.name: cure.digest() for cure in cures}


def lacking(built: dict[str, Any] | None) -> list[Cure]:
    """Return the cures, as they are now, that a build's facts do not list.

    Parameters
    ----------
    built
        The facts of the installed Horovod; None where somebody else built it,
        from a source that is not known to be cured.
    """
    recorded = (built or {}).get("cures", {})
    return [cure for cure in CURES if recorded.get(cure.name) != cure.digest()]
