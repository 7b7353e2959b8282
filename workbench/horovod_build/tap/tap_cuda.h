// When the streams of a GPU reached events, as times of the host's clock.
//
// CUDA only measures the time between two events. An anchor is an event that the host has seen
// at a known time: it was reached after the call that recorded it, and before the query that
// reported it. The middle is at most half of that interval wrong, some microseconds if the GPU
// answers at once. The clocks of GPU and host also drift apart, by less than 100 us in a second.
// So a new anchor replaces one that is a second old, unless the old one is still more exact. These
// errors shift the transfers of a GPU against other times; they do not change their durations.

#ifndef HOROVOD_TAP_CUDA_H
#define HOROVOD_TAP_CUDA_H

#include <cuda_runtime.h>

#include <mutex>
#include <unordered_map>

#include "common.h"

namespace horovod {
namespace common {
namespace tap {

// In nanoseconds, as all times.
constexpr int64_t ANCHOR_LASTS = 1000000000;
constexpr int64_t EXACT_ENOUGH = 10000;
constexpr int64_t LONGEST_QUERY = 100000;
constexpr int64_t DRIFT = 10000; // at most one in so many
constexpr int MAX_TRIES = 3;

struct Anchor {
  cudaEvent_t event = nullptr;
  int64_t reached = 0;
  int64_t error = 0; // of `reached`, when the anchor was new

  ~Anchor() {
    if (event != nullptr) {
      cudaEventDestroy(event);
    }
  }

  int64_t Error(int64_t now) const { return error + (now - reached) / DRIFT; }
};

using AnchorPtr = std::shared_ptr<const Anchor>;

// Anchors of the GPUs of this process. Only threads that wait for a GPU use it.
class Anchors {
public:
  // Return the best anchor of the current GPU; null if there is none.
  AnchorPtr Get(int device) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto& mine = devices_[device];
    auto now = Now();
    if (mine.tried == 0 || now - mine.tried > ANCHOR_LASTS) {
      mine.tried = now;
      for (int tries = 0; tries < MAX_TRIES; ++tries) {
        auto fresh = Take(mine.stream);
        if (fresh != nullptr && (mine.best == nullptr || fresh->error <= mine.best->Error(now))) {
          mine.best = fresh;
        }
        if (fresh != nullptr && fresh->error <= EXACT_ENOUGH) {
          break;
        }
      }
    }
    return mine.best;
  }

private:
  struct Device {
    cudaStream_t stream = nullptr;
    int64_t tried = 0;
    AnchorPtr best;
  };

  // Return a new anchor; null if the GPU does not answer at once, as when its queues are full.
  static AnchorPtr Take(cudaStream_t& stream) {
    auto anchor = std::make_shared<Anchor>();
    int least, greatest;
    if (stream == nullptr &&
        (cudaDeviceGetStreamPriorityRange(&least, &greatest) != cudaSuccess ||
         cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest) != cudaSuccess)) {
      return nullptr;
    }
    if (cudaEventCreateWithFlags(&anchor->event, cudaEventDefault) != cudaSuccess) {
      return nullptr;
    }
    auto before = Now();
    if (cudaEventRecord(anchor->event, stream) != cudaSuccess) {
      return nullptr;
    }
    auto result = cudaErrorNotReady;
    auto after = before;
    while (result == cudaErrorNotReady && after - before < LONGEST_QUERY) {
      result = cudaEventQuery(anchor->event);
      after = Now();
    }
    cudaGetLastError(); // a query that is too early leaves an error
    anchor->error = (after - before) / 2;
    anchor->reached = before + anchor->error;
    return result == cudaSuccess ? anchor : nullptr;
  }

  std::mutex mutex_;
  std::unordered_map<int, Device> devices_;
};

// The same of a collective whose events a thread waits for, one after the other.
class StreamEvents : public StreamTimes {
public:
  explicit StreamEvents(const std::vector<TensorTableEntry>& entries) : StreamTimes(entries) {
    if (buffer_ != nullptr) {
      anchor_ = AllAnchors().Get(entries[0].device);
    }
  }

  // The thread has seen that the stream has reached the event.
  void Seen(const std::string& activity, cudaEvent_t event) {
    float milliseconds;
    if (anchor_ == nullptr ||
        cudaEventElapsedTime(&milliseconds, anchor_->event, event) != cudaSuccess) {
      return;
    }
    // CUDA's documentation does not say whether the result can be negative.
    if (milliseconds <= 0) {
      if (cudaEventElapsedTime(&milliseconds, event, anchor_->event) != cudaSuccess) {
        return;
      }
      milliseconds = -milliseconds;
    }
    Reached(activity, anchor_->reached + (int64_t)(1e6 * milliseconds));
  }

private:
  // Never destroyed: CUDA may be gone before the static objects of this library.
  static Anchors& AllAnchors() {
    static Anchors& all = *new Anchors();
    return all;
  }

  AnchorPtr anchor_;
};

} // namespace tap
} // namespace common
} // namespace horovod

#endif // HOROVOD_TAP_CUDA_H
