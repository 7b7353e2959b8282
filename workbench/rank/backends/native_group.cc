// The process group that forwards a reducer's calls and notes its buckets, without Python.
//
// Each bucket costs well under a microsecond, and Python's lock is never taken. Nothing here may
// raise an error that a plain process group would not: then a bucket is not noted.
#include <time.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace {

constexpr size_t MAX_BUCKETS = 1 << 15;  // that are kept until they are taken

// Return what time.perf_counter_ns() returns.
int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

int64_t bytes_of(const at::Tensor& tensor) {
  if (!tensor.is_sparse()) return static_cast<int64_t>(tensor.nbytes());
  return static_cast<int64_t>(tensor._values().nbytes() + tensor._indices().nbytes());
}

struct Bucket {
  int64_t submitted;
  int64_t bytes;
  std::atomic<int64_t> finished{0};
};

class ForwardingGroup : public c10d::ProcessGroup {
 public:
  explicit ForwardingGroup(c10::intrusive_ptr<c10d::ProcessGroup> real)
      : ProcessGroup(real->getRank(), real->getSize()), real_(std::move(real)) {}

  int getRank() const override { return real()->getRank(); }
  int getSize() const override { return real()->getSize(); }
  const std::string getBackendName() const override { return real()->getBackendName(); }

  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    // while a sparse gradient is reduced, a thread of Gloo puts the rows of all ranks in it
    const int64_t bytes = bytes_of(tensors[0]);
    const int64_t submitted = now_ns();
    auto work = real()->allreduce(tensors, options);
    // the map of the parameters that were used is no bucket
    if (recording && tensors[0].scalar_type() != at::kInt) note(bytes, *work, submitted);
    return work;
  }

  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    try {
      std::lock_guard<std::mutex> guard(lock_);
      layout_ = tensors[0];  // the last call has the number of parameters of each bucket
    } catch (...) {
    }
    return real()->broadcast(tensors, options);
  }

  c10::intrusive_ptr<c10d::ProcessGroup> real() const {
    std::lock_guard<std::mutex> guard(lock_);
    return real_;
  }

  void set_real(c10::intrusive_ptr<c10d::ProcessGroup> group) {
    std::lock_guard<std::mutex> guard(lock_);
    real_.swap(group);
  }

  // Return the buckets since the last call: when each was submitted and finished, or 0; its bytes.
  std::vector<std::tuple<int64_t, int64_t, int64_t>> take() {
    std::vector<std::shared_ptr<Bucket>> buckets;
    {
      std::lock_guard<std::mutex> guard(lock_);
      buckets.swap(buckets_);
    }
    std::vector<std::tuple<int64_t, int64_t, int64_t>> rows;
    rows.reserve(buckets.size());
    for (const auto& bucket : buckets)
      rows.emplace_back(bucket->submitted, bucket->finished.load(), bucket->bytes);
    return rows;
  }

  // Return the number of parameters of each bucket if DDP has divided them again; else nothing.
  std::vector<int64_t> take_layout() {
    at::Tensor layout;
    {
      std::lock_guard<std::mutex> guard(lock_);
      std::swap(layout, layout_);
    }
    if (!layout.defined()) return {};
    layout = layout.to(at::kCPU, at::kLong).contiguous();
    return {layout.data_ptr<int64_t>(), layout.data_ptr<int64_t>() + layout.numel()};
  }

  std::atomic<bool> recording{true};

 private:
  void note(int64_t bytes, c10d::Work& work, int64_t submitted) noexcept {
    try {
      auto bucket = std::make_shared<Bucket>();
      bucket->submitted = submitted;
      bucket->bytes = bytes;
      {
        std::lock_guard<std::mutex> guard(lock_);
        if (buckets_.size() >= MAX_BUCKETS) return;
        buckets_.push_back(bucket);
      }
      work.getFuture()->addCallback(
          [bucket](c10::ivalue::Future&) { bucket->finished = now_ns(); },
          /*uses_future=*/false);
    } catch (...) {  // without memory, or a Work without a future
    }
  }

  mutable std::mutex lock_;
  c10::intrusive_ptr<c10d::ProcessGroup> real_;
  std::vector<std::shared_ptr<Bucket>> buckets_;
  at::Tensor layout_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::class_<ForwardingGroup, c10d::ProcessGroup, c10::intrusive_ptr<ForwardingGroup>>(
      module, "ForwardingGroup")
      .def(py::init<c10::intrusive_ptr<c10d::ProcessGroup>>())
      .def_property(
          "real",
          &ForwardingGroup::real,
          // the last reference to a group joins its threads, which may need Python's lock
          py::cpp_function(
              &ForwardingGroup::set_real, py::call_guard<py::gil_scoped_release>()))
      .def_property(
          "recording",
          [](const ForwardingGroup& group) { return group.recording.load(); },
          [](ForwardingGroup& group, bool on) { group.recording = on; })
      .def("take", &ForwardingGroup::take)
      .def("take_layout", &ForwardingGroup::take_layout);
}
