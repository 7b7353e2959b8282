// Records when each collective was submitted, negotiated, transferred and finished.
//
// Added to Horovod by Gradient Workbench. Every rank records its own collectives, also
// where the timeline is off. A reader in the same process takes the records in bulk;
// see `horovod_tap_read` in tap.cc. While recording is off, each call costs one load.

#ifndef HOROVOD_TAP_H
#define HOROVOD_TAP_H

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace horovod {
namespace common {

class Status;
struct TensorTableEntry;

namespace tap {

extern std::atomic_bool enabled;

// The collective that this thread is submitting, as its framework numbers them.
extern thread_local int64_t current_handle;

// Nanoseconds of CLOCK_MONOTONIC, as `time.perf_counter_ns()` of Python.
inline int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// What all ranks of a process set are ready for: tensors that are transferred in one buffer.
struct Buffer {
  // With NCCL, not before the GPU's stream has this rank's tensors.
  int64_t responded;
  // From the begin of its first transfer to the end of its last; 0 if there was none.
  int64_t began = 0;
  int64_t ended = 0;
  std::string library;
};

// Kept in each entry of the tensor table. A caller makes the entry when it submits the tensor.
struct Mark {
  int64_t submitted = enabled.load(std::memory_order_relaxed) ? Now() : 0;
  int64_t handle = current_handle;
  std::shared_ptr<Buffer> buffer;
};

// All ranks are ready for these tensors, and this rank executes their collective. `entries`
// must outlive this object.
class Execution {
public:
  explicit Execution(std::vector<TensorTableEntry>& entries);
  ~Execution();
  Execution(const Execution&) = delete;
};

// An activity of these tensors, such as a copy or a transfer, begins and ends.
void ActivityBegins(const std::vector<TensorTableEntry>& entries, const std::string& activity);
void ActivityEnds(const std::vector<TensorTableEntry>& entries);

// Whether a collective is recorded; the same from its `Execution` to its end.
bool IsRecorded(const std::vector<TensorTableEntry>& entries);

// When the stream of a GPU reached the events of a collective: an event without a name once the
// tensors were there, then one at the end of each activity. Stored in the buffer at the end.
class StreamTimes {
public:
  explicit StreamTimes(const std::vector<TensorTableEntry>& entries);
  ~StreamTimes();
  StreamTimes(const StreamTimes&) = delete;

  // The stream has reached the next event, at this time of the host's clock.
  void Reached(const std::string& activity, int64_t at);

protected:
  const std::shared_ptr<Buffer> buffer_;

private:
  int64_t first_ = 0;
  int64_t latest_ = 0;
  int64_t ready_ = 0;
  int64_t began_ = 0;
  int64_t ended_ = 0;
  std::string library_;
};

// The collective of a tensor has ended, with a status; before its callback.
void Finished(const TensorTableEntry& entry, const Status& status);

} // namespace tap
} // namespace common
} // namespace horovod

#endif // HOROVOD_TAP_H
