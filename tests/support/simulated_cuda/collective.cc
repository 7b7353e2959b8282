// Runs collectives of one rank on the GPU of cudart.cc, with Horovod's own operations, events,
// threads and records.

#include <condition_variable>
#include <sstream>

#include "simulation.h"

namespace horovod {
namespace common {

// The process set of all ranks. Horovod's own table needs Gloo or MPI to be compiled.
ProcessSet::ProcessSet(std::vector<int>) {}
bool ProcessSet::IsCurrentProcessIncluded() const { return true; }
ProcessSetTable::ProcessSetTable() { id_to_process_set_[0]; }
ProcessSet& ProcessSetTable::Get(int32_t id) { return id_to_process_set_.at(id); }
bool ProcessSetTable::Contains(int32_t id) const { return id == 0; }
std::vector<int32_t> ProcessSetTable::Ids() const { return {0}; }
int32_t ProcessSetTable::RegisterProcessSet(std::vector<int>) { return -1; }
int32_t ProcessSetTable::FindId(const std::vector<int32_t>&) { return -1; }
void ProcessSetTable::MarkProcessSetForRemoval(int32_t) {}
bool ProcessSetTable::ProcessSetHasJustBeenRemoved() { return false; }

namespace {

constexpr int64_t BYTES = 1 << 10;

class Gradient : public Tensor {
public:
  const DataType dtype() const override { return HOROVOD_FLOAT32; }
  const TensorShape shape() const override { return TensorShape(); }
  const void* data() const override { return nullptr; }
  int64_t size() const override { return BYTES; }
};

class Memory : public PersistentBuffer {
public:
  const void* AccessData(std::shared_ptr<OpContext>) const override { return nullptr; }
};

class Framework_ : public OpContext {
public:
  Status AllocatePersistent(int64_t, std::shared_ptr<PersistentBuffer>* memory) override {
    *memory = std::make_shared<Memory>();
    return Status::OK();
  }
  Status AllocateOutput(TensorShape, std::shared_ptr<Tensor>*,
                        std::shared_ptr<ReadyEvent>*) override {
    return Status::UnknownError("");
  }
  Status AllocateZeros(int64_t, DataType, std::shared_ptr<Tensor>*) override {
    return Status::UnknownError("");
  }
  Framework framework() const override { return Framework::PYTORCH; }
};

// A backward that computes gradients on its own stream.
class Backward : public ReadyEvent {
public:
  explicit Backward(int64_t nanoseconds) {
    cudaStreamCreateWithPriority(&stream_, 0, 0);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    simulated_work(stream_, nanoseconds);
    cudaEventRecord(event_, stream_);
  }
  ~Backward() { cudaEventDestroy(event_); }
  bool Ready() const override { return cudaEventQuery(event_) == cudaSuccess; }
  gpuEvent_t event() const override { return event_; }

private:
  cudaStream_t stream_;
  cudaEvent_t event_;
};

struct Rank {
  HorovodGlobalState state;
  GPUContext gpu;
  NCCLContext nccl;
  NCCLAllreduce allreduce{&nccl, &gpu, &state};
  std::shared_ptr<OpContext> framework = std::make_shared<Framework_>();
  Response response;
  std::mutex mutex;
  std::condition_variable finished;
  int outstanding = 0;

  Rank() {
    gpu.streams.resize(1);
    gpu.StreamCreate(&gpu.streams[0][0]);
    gpu.finalizer_thread_pool.create(1);
    nccl.nccl_comms.resize(1);
    nccl.nccl_comms[0][std::make_tuple(0, std::vector<int32_t>{0})] = (ncclComm_t)this;
    response.set_devices({0});
    response.set_reduce_op(ReduceOp::SUM);
    state.fusion_buffer.InitializeBuffer(BYTES, 0, framework, 0, [] {}, [] {});
  }

  std::vector<TensorTableEntry> Entries(const std::string& name, int count) {
    std::vector<TensorTableEntry> entries((std::size_t)count);
    outstanding = count;
    for (int n = 0; n < count; ++n) {
      entries[n].tensor_name = "allreduce." + name + std::to_string(n);
      entries[n].context = framework;
      entries[n].tensor = std::make_shared<Gradient>();
      entries[n].output = entries[n].tensor;
      entries[n].device = 0;
      entries[n].tap.handle = n;
      entries[n].callback = [this](const Status&) {
        std::lock_guard<std::mutex> guard(mutex);
        outstanding--;
        finished.notify_all();
      };
    }
    return entries;
  }

  void Await() {
    std::unique_lock<std::mutex> lock(mutex);
    finished.wait(lock, [this] { return outstanding == 0; });
  }
};

Rank& rank = *new Rank();

} // namespace
} // namespace common
} // namespace horovod

using namespace horovod::common;

extern "C" {

// Choose HOROVOD_ELASTIC and HOROVOD_ENABLE_ASYNC_COMPLETION.
void choose(int elastic, int async_completion) {
  rank.state.elastic_enabled = elastic;
  rank.state.enable_async_completion = async_completion;
}

// Sum tensors that a backward still computes; return when it has computed them.
int64_t allreduce(const char* name, int tensors, int64_t backward_ns, int64_t copy_ns,
                  int64_t transfer_ns) {
  simulated_copy_ns = copy_ns;
  simulated_transfer_ns = transfer_ns;
  auto entries = rank.Entries(name, tensors);
  auto backward = std::make_shared<Backward>(backward_ns);
  for (auto& entry : entries) {
    entry.ready_event_list.AddReadyEvent(backward);
  }
  {
    tap::Execution execution(entries);
    auto status = rank.allreduce.Execute(entries, rank.response);
    if (!status.in_progress()) {
      return -1;
    }
  }
  rank.Await();
  return simulated_reached(backward->event());
}

// Do what another operation does, in steps. Each line of the script is one:
//
//   work US         the stream is busy for so many microseconds
//   event NAME      RecordEvent; its time is the next of `reached`
//   launch NAME     an activity of Horovod's thread
//   sleep US        Horovod's thread does something else
//   wait            WaitForEvents
void run_steps(const char* name, int tensors, const char* script, int64_t* reached) {
  auto& stream = rank.gpu.streams[0][0];
  auto entries = rank.Entries(name, tensors);
  tap::Execution execution(entries);
  std::queue<std::pair<std::string, Event>> queue;
  std::istringstream lines(script);
  for (std::string line; std::getline(lines, line);) {
    auto space = std::min(line.find(' '), line.size());
    auto step = line.substr(0, space);
    auto value = space < line.size() ? line.substr(space + 1) : "";
    if (step == "work") {
      simulated_work(stream, 1000 * std::stoll(value));
    } else if (step == "event") {
      rank.gpu.RecordEvent(queue, value, stream);
      *reached++ = simulated_reached(*queue.back().second.event);
    } else if (step == "launch") {
      rank.state.timeline.ActivityStartAll(entries, value);
      rank.state.timeline.ActivityEndAll(entries);
    } else if (step == "sleep") {
      std::this_thread::sleep_for(std::chrono::microseconds(std::stoll(value)));
    } else if (step == "wait") {
      rank.gpu.WaitForEvents(queue, entries, rank.state.timeline);
    }
  }
  for (auto& entry : entries) {
    entry.FinishWithCallback(Status::OK());
  }
}

} // extern "C"
