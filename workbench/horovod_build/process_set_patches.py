"""Patches of Horovod's process sets: for ranks that are lost, stopped or shut down."""

from __future__ import annotations

from workbench.horovod_build.patch import REPOSITORY, Edit, SourcePatch

PROCESS_SET_PATCHES = (
    # Before it ends, the background thread agrees with all ranks on the removal of each
    # process set. If a rank has ended, Gloo's exception leaves the thread, which terminates
    # the process. With the patch, each rank then removes its process sets on its own.
    SourcePatch(
        name="process-set-of-a-lost-rank",
        defect="if a rank is killed while a process set exists, the other ranks die too",
        upstream=f"{REPOSITORY}/horovod/common/process_set.cc#L213",
        edits=(
            Edit(
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
        ),
    ),
    # With dynamic process sets, the background thread asks all ranks in every cycle whether
    # a process set was added or removed, and holds the lock of the table until they answer. A
    # collective of a process set, or a query about it, then waits for that lock, and keeps the
    # GIL: if a rank stops or is lost, no thread of the others runs until Gloo's time is over.
    SourcePatch(
        name="process-sets-locked-during-exchange",
        defect="while a rank is stopped, other ranks that use process sets do not react at all",
        upstream=f"{REPOSITORY}/horovod/common/process_set.cc#L179",
        edits=(
            Edit(
                file="horovod/common/process_set.cc",
                old="""\
  std::lock_guard<std::recursive_mutex> guard(mutex);

  auto locally_registered_count = (int)ids_.size();
  std::array<int, 2> pair_to_transmit{locally_registered_count,
                                      id_to_be_removed_};

  auto& global_controller = *Get(0).controller;
  auto recv_buffer = std::vector<int>(2 * global_controller.GetSize());
  global_controller.Allgather2Ints(pair_to_transmit, recv_buffer);

  bool registered_count_agreement = true;
  bool id_to_be_removed_agreement = true;
  for (int i_locally_registered_count = 0;
       i_locally_registered_count < 2 * global_controller.GetSize() &&
       (registered_count_agreement || id_to_be_removed_agreement);
       i_locally_registered_count += 2) {
    auto other_reg_count = recv_buffer[i_locally_registered_count];
    auto other_marked_id = recv_buffer[i_locally_registered_count + 1];
    if (other_reg_count != locally_registered_count) {
      registered_count_agreement = false;
    }
    if (other_marked_id != id_to_be_removed_) {
      id_to_be_removed_agreement = false;
    }
  }

  // 1) Initialize registered process sets if all processes are ready to do so:
  int32_t initialized_count = 0;
  if (registered_count_agreement) {
    for (auto id : Ids()) {
      bool newly_registered = Get(id).Initialize(global_context);
      if (newly_registered) {
        ++initialized_count;
        LOG(TRACE, global_controller.GetRank())
            << "Initialized process set with id " << id;
      }
    }
  }

  // 2) Finalize and deregister a process set marked for removal by all processess:
  if (id_to_be_removed_agreement) {
    if (id_to_be_removed_ == NO_PENDING_REMOVAL ||
        id_to_be_removed_ == SUCCESSFUL_REMOVAL) {
      // do nothing
    } else {
      id_to_process_set_[id_to_be_removed_].Finalize(removal_status);
      DeregisterProcessSet(id_to_be_removed_);
      LOG(TRACE, global_controller.GetRank())
          << "Removed process set with id " << id_to_be_removed_;

      id_to_be_removed_ = SUCCESSFUL_REMOVAL;
    }
  }

""",
                new="""\
  std::unique_lock<std::recursive_mutex> guard(mutex);

  const std::vector<int32_t> registered_ids(ids_);
  const auto marked_id = id_to_be_removed_;
  auto locally_registered_count = (int)registered_ids.size();
  std::array<int, 2> pair_to_transmit{locally_registered_count,
                                      marked_id};

  auto& global_controller = *Get(0).controller;
  auto recv_buffer = std::vector<int>(2 * global_controller.GetSize());
  guard.unlock();
  global_controller.Allgather2Ints(pair_to_transmit, recv_buffer);
  guard.lock();

  bool registered_count_agreement = true;
  bool id_to_be_removed_agreement = true;
  for (int i_locally_registered_count = 0;
       i_locally_registered_count < 2 * global_controller.GetSize() &&
       (registered_count_agreement || id_to_be_removed_agreement);
       i_locally_registered_count += 2) {
    auto other_reg_count = recv_buffer[i_locally_registered_count];
    auto other_marked_id = recv_buffer[i_locally_registered_count + 1];
    if (other_reg_count != locally_registered_count) {
      registered_count_agreement = false;
    }
    if (other_marked_id != marked_id) {
      id_to_be_removed_agreement = false;
    }
  }

  // 1) Initialize registered process sets if all processes are ready to do so:
  int32_t initialized_count = 0;
  if (registered_count_agreement) {
    for (auto id : registered_ids) {
      bool newly_registered = Get(id).Initialize(global_context);
      if (newly_registered) {
        ++initialized_count;
        LOG(TRACE, global_controller.GetRank())
            << "Initialized process set with id " << id;
      }
    }
  }

  // 2) Finalize and deregister a process set marked for removal by all processess:
  if (id_to_be_removed_agreement) {
    if (marked_id == NO_PENDING_REMOVAL ||
        marked_id == SUCCESSFUL_REMOVAL) {
      // do nothing
    } else {
      id_to_process_set_[marked_id].Finalize(removal_status);
      DeregisterProcessSet(marked_id);
      LOG(TRACE, global_controller.GetRank())
          << "Removed process set with id " << marked_id;

      id_to_be_removed_ = SUCCESSFUL_REMOVAL;
    }
  }

""",
            ),
        ),
    ),
    # These two functions wait in the caller's thread for a flag. If the shutdown is quick,
    # the flag is set for less than the millisecond that they sleep. The first function
    # also reads the process set that the shutdown has freed.
    SourcePatch(
        name="process-set-added-at-shutdown",
        defect="hvd.add_process_set() may wait for ever, or seem to succeed, when a rank is lost",
        upstream=f"{REPOSITORY}/horovod/common/operations.cc#L1287",
        edits=(
            Edit(
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
        ),
    ),
    SourcePatch(
        name="process-set-removed-at-shutdown",
        defect="hvd.remove_process_set() may wait for ever when a rank is lost",
        upstream=f"{REPOSITORY}/horovod/common/operations.cc#L1318",
        edits=(
            Edit(
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
        ),
    ),
    # The set of all ranks survives a shutdown, including the record of the rank that had called
    # join(). In the next ring, that rank executes collectives as a joined rank without tensors,
    # but lacks the tensor of join() that this requires.
    SourcePatch(
        name="join-of-an-earlier-init",
        defect="a rank dies of SIGSEGV at the next hvd.init() if Horovod was shut down while "
        "ranks waited in hvd.join()",
        upstream=f"{REPOSITORY}/horovod/common/process_set.cc#L150",
        edits=(
            Edit(
                file="horovod/common/process_set.cc",
                old="""\
  registered_global_ranks.clear();
  initialization_done = false;
""",
                new="""\
  registered_global_ranks.clear();
  joined_size = 0;
  last_joined_rank = -1;
  joined = false;
  initialization_done = false;
""",
            ),
        ),
    ),
    # A collective looks up its process set before it checks whether Horovod is shutting down,
    # which removes the sets. Only HorovodInternalError tells a caller that the ring ended.
    SourcePatch(
        name="process-set-of-an-ended-ring",
        defect="a collective in a process set raises ValueError, not HorovodInternalError, while "
        "the ring ends",
        upstream=f"{REPOSITORY}/horovod/common/operations.cc#L1449",
        edits=(
            Edit(
                file="horovod/common/operations.cc",
                old="""\
  if (!horovod_global.process_set_table.Contains(process_set_id)) {
    return Status::InvalidArgument(""",
                new="""\
  if (horovod_global.shut_down) {
    return SHUT_DOWN_ERROR;
  }
  if (!horovod_global.process_set_table.Contains(process_set_id)) {
    return Status::InvalidArgument(""",
                times=5,
            ),
        ),
    ),
)
"""The patches, in the order of their application."""
