"""A patch that records the times of NCCL's transfers, as measured by the GPU.

With NCCL, Horovod only queues a collective on a stream of the GPU. Another thread waits until the
stream has completed it. If the timeline is on, Horovod queues an event after each activity. With
this patch, it also does so for the collectives that the tap records, and the waiting thread reads
when the GPU reached each event (see ``tap_cuda.h``). Horovod queues a collective before its
gradients are computed, so one more event marks when the stream has them.

Two kinds of events are queued only for the timeline, as before: at the begin of the queue, and
after copies out of a buffer. ``WaitForData`` is unchanged, because the timeline's way makes
Horovod's thread wait.
"""

from __future__ import annotations

from pathlib import Path

from workbench.horovod_build.patch import REPOSITORY, Edit, SourcePatch

_OPS = "horovod/common/ops"
_NCCL = f"{_OPS}/nccl_operations.cc"
_CUDA = f"{_OPS}/cuda_operations.cc"
_TIMELINE = "if (global_state_->timeline.Initialized()) {\n"
_RECORDED = "if (global_state_->timeline.Initialized() || tap::IsRecorded(entries)) {\n"
_RECORD = "gpu_context_->RecordEvent(gpu_op_context_.event_queue,"
_COPIED = f"      {_RECORD}\n                                MEMCPY_IN_FUSION_BUFFER,\n"
_WAIT = "  gpu_op_context_.InitGPUQueue(entries, response);\n\n  WaitForData(entries);\n"
_READY = (
    f"  if (tap::IsRecorded(entries)) {{\n    {_RECORD}\n"
    '                              "", *gpu_op_context_.stream);\n  }\n'
)
_LOOP = "error_check_callback) {\n    while (!event_queue.empty()) {\n"
_ENDS = '      if (name != "") {\n        timeline.ActivityEndAll(entries);\n'
_CHECKED = "      if (error_check_callback) {\n        error_check_callback();\n      }\n\n"
_POLLED = "        std::this_thread::yield();\n      }\n\n"
_SEEN = "      events.Seen(name, *(event.event));\n"

TAP_NCCL = SourcePatch(
    name="tap-nccl",
    defect="the transfers of GPUs are not recorded",
    upstream=f"{REPOSITORY}/{_NCCL}#L262",
    edits=(
        Edit(file=_NCCL, old=_WAIT, new=_WAIT + _READY, times=7),
        Edit(file=_NCCL, old=f"    {_TIMELINE}{_COPIED}", new=f"    {_RECORDED}{_COPIED}", times=5),
        # The same text with two indentations.
        Edit(
            file=_NCCL,
            old=f"{_TIMELINE}    {_RECORD} NCCL_",
            new=f"{_RECORDED}    {_RECORD} NCCL_",
            times=3,
        ),
        Edit(
            file=_NCCL,
            old=f"{_TIMELINE}      {_RECORD} NCCL_",
            new=f"{_RECORDED}      {_RECORD} NCCL_",
            times=12,
        ),
        Edit(
            file=_CUDA,
            old='#include "../message.h"\n',
            new='#include "../message.h"\n#include "../tap_cuda.h"\n',
        ),
        # Only events with a time can be compared.
        Edit(
            file=_CUDA,
            old="cudaEventCreateWithFlags(&ev, cudaEventDisableTiming)",
            new="cudaEventCreateWithFlags(&ev, cudaEventDefault)",
            times=2,
        ),
        Edit(
            file=_CUDA,
            old=_LOOP,
            new=_LOOP.replace("    while", "    tap::StreamEvents events(entries);\n    while"),
            times=2,
        ),
        Edit(file=_CUDA, old=_CHECKED + _ENDS, new=_CHECKED + _SEEN + _ENDS),
        Edit(file=_CUDA, old=_POLLED + _ENDS, new=_POLLED + _SEEN + _ENDS),
    ),
    added=(Path(__file__).with_name("tap_cuda.h"),),
)
