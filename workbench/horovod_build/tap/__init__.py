"""A patch that records each collective at its source, in every rank.

Horovod's timeline exists on rank 0 only, and costs more than the collectives of a small model.
The files of this folder are added to Horovod: `tap.h` is called at the times to record, and
`tap.cc` keeps the records until `workbench.rank.backends.horovod_tap` reads them.
"""

from __future__ import annotations

from pathlib import Path

from workbench.horovod_build.patch import REPOSITORY, Edit, SourcePatch

_FOLDER = Path(__file__).parent
_COMMON = "horovod/common"
_TORCH = "horovod/torch"

TAP = SourcePatch(
    name="tap",
    defect="the times of collectives are not recorded, and neither is what a rank waits for",
    upstream=f"{REPOSITORY}/horovod/common/timeline.cc#L571",
    edits=(
        Edit(
            file=f"{_COMMON}/common.h",
            old='#include "message.h"\n#include "nvtx_op_range.h"\n',
            new='#include "message.h"\n#include "nvtx_op_range.h"\n#include "tap.h"\n',
        ),
        Edit(
            file=f"{_COMMON}/common.h",
            old="  std::shared_ptr<Tensor> received_splits;\n\n  // Execute",
            new="  std::shared_ptr<Tensor> received_splits;\n\n"
            "  // When it was submitted, and the buffer that it belongs to.\n"
            "  tap::Mark tap;\n\n  // Execute",
        ),
        Edit(
            file=f"{_COMMON}/common.cc",
            old="  // Callback can be null if the rank sent Join request.\n",
            new="  tap::Finished(*this, status);\n"
            "  // Callback can be null if the rank sent Join request.\n",
        ),
        Edit(
            file=f"{_COMMON}/timeline.cc",
            old="const std::string& activity) {\n"
            "  if (!Initialized() || !writer_.active()) {\n    return;\n  }\n"
            "  for (auto& e : entries) {\n",
            new="const std::string& activity) {\n  tap::ActivityBegins(entries, activity);\n"
            "  if (!Initialized() || !writer_.active()) {\n    return;\n  }\n"
            "  for (auto& e : entries) {\n",
        ),
        Edit(
            file=f"{_COMMON}/timeline.cc",
            old="void Timeline::ActivityEndAll(const std::vector<TensorTableEntry>& entries) {\n",
            new="void Timeline::ActivityEndAll(const std::vector<TensorTableEntry>& entries) {\n"
            "  tap::ActivityEnds(entries);\n",
        ),
        Edit(
            file=f"{_COMMON}/operations.cc",
            old="                                                        process_set.joined);\n\n"
            "  if (response.response_type() != Response::JOIN &&",
            new="                                                        process_set.joined);\n"
            "  tap::Execution execution(entries);\n\n"
            "  if (response.response_type() != Response::JOIN &&",
        ),
        Edit(
            file=f"{_COMMON}/operations.cc",
            old="} // namespace common\n} // namespace horovod\n",
            new='} // namespace common\n} // namespace horovod\n\n#include "tap.cc"\n',
        ),
        Edit(
            file=f"{_COMMON}/tensor_queue.cc",
            old="  tensor_table_.emplace(e.tensor_name, std::move(e));\n",
            new="  tensor_table_.emplace(e.tensor_name, std::move(e));\n  submitted_++;\n",
        ),
        Edit(
            file=f"{_COMMON}/tensor_queue.cc",
            old="    tensor_table_.emplace(entries[i].tensor_name, std::move(entries[i]));\n",
            new="    tensor_table_.emplace(entries[i].tensor_name, std::move(entries[i]));\n"
            "    submitted_++;\n",
        ),
        Edit(
            file=f"{_COMMON}/tensor_queue.h",
            old="  void RemoveJoinTensor();\n\nprotected:\n",
            new="  void RemoveJoinTensor();\n\n"
            "  // Call `each` with the tensors that not all ranks are ready for; return how many\n"
            "  // tensors were ever added.\n"
            "  template <typename Each> int64_t Pending(Each each) const {\n"
            "    std::lock_guard<std::mutex> guard(mutex_);\n"
            "    for (auto& entry : tensor_table_) {\n"
            "      each(entry.second);\n"
            "    }\n"
            "    return submitted_;\n"
            "  }\n\nprotected:\n  int64_t submitted_ = 0;\n\n",
        ),
        Edit(
            file=f"{_TORCH}/handle_manager.cc",
            old="  int handle = last_handle_.fetch_add(1) + 1;\n",
            new="  int handle = last_handle_.fetch_add(1) + 1;\n"
            "  common::tap::current_handle = handle;\n",
        ),
    ),
    added=(_FOLDER / "tap.h", _FOLDER / "tap.cc"),
)
