// The part of CUDA's runtime that Horovod's events need, with a GPU that only keeps time.
//
// A stream is busy until a time of the GPU's clock, which has another origin than the host's, and
// is slower. An event is reached when the stream has done what was queued before it.

#include "simulation.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace {

constexpr int64_t SLOWER = 10000; // one nanosecond in so many

int64_t HostNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

const int64_t origin = HostNow();

int64_t ToGpu(int64_t host) { return host - origin - (host - origin) / SLOWER; }
int64_t ToHost(int64_t gpu) { return origin + gpu + gpu / (SLOWER - 1); }
int64_t GpuNow() { return ToGpu(HostNow()); }

struct Stream {
  int64_t busy_until = 0;
};

struct Event {
  bool timed;
  int64_t reached = 0; // 0 if never recorded
};

Stream& StreamOf(cudaStream_t stream) { return *reinterpret_cast<Stream*>(stream); }
Event& EventOf(cudaEvent_t event) { return *reinterpret_cast<Event*>(event); }

std::atomic<int64_t> recorded{0};
std::atomic<int64_t> queue_delay{0};

} // namespace

extern "C" {

void simulated_work(cudaStream_t stream, int64_t nanoseconds) {
  auto& until = StreamOf(stream).busy_until;
  until = std::max(until, GpuNow()) + nanoseconds;
}

void simulated_queue_delay(int64_t nanoseconds) { queue_delay = nanoseconds; }

int64_t simulated_reached(cudaEvent_t event) { return ToHost(EventOf(event).reached); }

int64_t simulated_recorded() { return recorded; }

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int) { return cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) {
    *least = 0;
  }
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  *stream = reinterpret_cast<cudaStream_t>(new Stream());
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  *event = reinterpret_cast<cudaEvent_t>(new Event{(flags & cudaEventDisableTiming) == 0});
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &EventOf(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ++recorded;
  EventOf(event).reached = std::max(StreamOf(stream).busy_until, GpuNow() + queue_delay);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return EventOf(event).reached <= GpuNow() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  auto until = ToHost(EventOf(event).reached);
  do {
    std::this_thread::sleep_for(std::chrono::nanoseconds(until - HostNow()));
  } while (cudaEventQuery(event) != cudaSuccess);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  for (auto event : {start, end}) {
    if (!EventOf(event).timed || EventOf(event).reached == 0) {
      return cudaErrorInvalidResourceHandle;
    }
    if (cudaEventQuery(event) != cudaSuccess) {
      return cudaErrorNotReady;
    }
  }
  // what CUDA documents are differences of at least 0
  *milliseconds = std::max<int64_t>(0, EventOf(end).reached - EventOf(start).reached) / 1e6f;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  auto& until = StreamOf(stream).busy_until;
  until = std::max(until, EventOf(event).reached);
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "simulated error"; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaErrorNotSupported; }

cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaErrorNotSupported;
}

} // extern "C"
