// The records of tap.h, and how Python reads them. Included at the end of operations.cc, which
// has the global state, so that no build file has to name it.

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "tap.h"

namespace horovod {
namespace common {
namespace tap {

std::atomic_bool enabled{false};
thread_local int64_t current_handle = 0;

namespace {

// One tensor that was finished. Python reads an array of these; all fields are 64-bit
// integers. Times are those of `Now`.
struct Record {
  int64_t name;        // for horovod_tap_name
  int64_t handle;      // the same for all tensors of a group
  int64_t process_set;
  int64_t bytes;       // that this rank has submitted
  int64_t status;      // StatusType; 0 is success
  int64_t library;     // name of the transfer, such as GLOO_ALLREDUCE; -1 if there was none
  int64_t submitted;
  int64_t responded;   // as in `Buffer`; equal for the tensors of a buffer; 0 if never
  int64_t began;       // the transfer; equal for the tensors of a buffer; 0 if there was none
  int64_t ended;
  int64_t finished;    // the callback was called; with HOROVOD_ENABLE_ASYNC_COMPLETION and NCCL
                       // this is before the transfer, which is then not recorded
};

// Names beyond this many are forgotten, all at once: a cell may name each collective anew.
constexpr std::size_t MAX_NAMES = 1 << 16;

struct State {
  std::mutex mutex;
  std::vector<Record> records;
  std::size_t most_records = 0;
  int64_t lost = 0;
  std::unordered_map<std::string, int64_t> ids;
  std::vector<std::string> names;
  int64_t first_id = 0;
  const std::vector<TensorTableEntry>* executing = nullptr;

  // Records that are being read; the writers never wait for a copy.
  std::mutex reading;
  std::vector<Record> taken;
  std::size_t read = 0;
};

// Never destroyed: Horovod's thread may outlive the static objects of this library.
State& state = *new State();

// Return a name's id; call with the mutex held.
//
// Horovod numbers collectives without a name: "allreduce.noname.17_1of2" is recorded as
// "allreduce.noname_1of2". A name that a user gave follows the first dot.
int64_t IdOf(const std::string& name) {
  static const std::string unnamed = ".noname.";
  auto dot = name.find('.');
  if (dot != std::string::npos && name.compare(dot, unnamed.size(), unnamed) == 0) {
    auto end = name.find_first_not_of("0123456789", dot + unnamed.size());
    return IdOf(name.substr(0, dot + unnamed.size() - 1) +
                (end == std::string::npos ? "" : name.substr(end)));
  }
  auto found = state.ids.find(name);
  if (found != state.ids.end()) {
    return found->second;
  }
  if (state.names.size() == MAX_NAMES) {
    state.first_id += MAX_NAMES;
    state.ids.clear();
    state.names.clear();
  }
  int64_t id = state.first_id + (int64_t)state.names.size();
  state.ids.emplace(name, id);
  state.names.push_back(name);
  return id;
}

bool Enabled() { return enabled.load(std::memory_order_relaxed); }

bool StartsWith(const std::string& text, const char* start) {
  return text.compare(0, std::strlen(start), start) == 0;
}

// Return whether an activity is a transfer between ranks, by the library that it names. Those of
// NCCL run on a GPU, and `StreamTimes` records them.
bool IsTransfer(const std::string& activity) {
  return StartsWith(activity, "GLOO_") || StartsWith(activity, "MPI_") ||
         StartsWith(activity, "CCL_");
}

std::shared_ptr<Buffer> BufferOf(const std::vector<TensorTableEntry>& entries) {
  return entries.empty() ? nullptr : entries[0].tap.buffer;
}

thread_local int64_t transfer_began = 0;

} // namespace

Execution::Execution(std::vector<TensorTableEntry>& entries) {
  if (!Enabled()) {
    return;
  }
  auto buffer = std::make_shared<Buffer>();
  buffer->responded = Now();
  for (auto& entry : entries) {
    entry.tap.buffer = buffer;
  }
  std::lock_guard<std::mutex> guard(state.mutex);
  state.executing = &entries;
}

Execution::~Execution() {
  std::lock_guard<std::mutex> guard(state.mutex);
  state.executing = nullptr;
}

void ActivityBegins(const std::vector<TensorTableEntry>& entries, const std::string& activity) {
  transfer_began = 0;
  auto buffer = BufferOf(entries);
  if (buffer != nullptr && IsTransfer(activity)) {
    transfer_began = Now();
    if (buffer->began == 0) {
      buffer->began = transfer_began;
      buffer->library = activity;
    }
  }
}

void ActivityEnds(const std::vector<TensorTableEntry>& entries) {
  auto buffer = BufferOf(entries);
  if (buffer != nullptr && transfer_began != 0) {
    buffer->ended = Now();
  }
  transfer_began = 0;
}

bool IsRecorded(const std::vector<TensorTableEntry>& entries) {
  return BufferOf(entries) != nullptr;
}

StreamTimes::StreamTimes(const std::vector<TensorTableEntry>& entries)
    : buffer_(BufferOf(entries)) {}

void StreamTimes::Reached(const std::string& activity, int64_t at) {
  if (StartsWith(activity, "NCCL_")) {
    if (library_.empty()) {
      began_ = latest_;
      library_ = activity;
    }
    ended_ = at;
  } else if (activity.empty() && library_.empty()) {
    ready_ = at;
  }
  latest_ = at;
  if (first_ == 0) {
    first_ = at;
  }
}

StreamTimes::~StreamTimes() {
  if (buffer_ == nullptr || library_.empty()) {
    return;
  }
  // The clocks of GPU and host differ a little. The stream cannot have reached an event before
  // it was queued, nor later than now; a correction changes no duration.
  int64_t shift = std::max<int64_t>(0, buffer_->responded - first_);
  shift = std::min(shift, Now() - latest_);
  if (ready_ != 0) {
    buffer_->responded = std::max(buffer_->responded, ready_ + shift);
  }
  if (buffer_->began == 0 && began_ != 0) {
    buffer_->began = std::max(buffer_->responded, began_ + shift);
    buffer_->library = library_;
  }
  if (buffer_->began != 0) {
    buffer_->ended = std::max(buffer_->ended, ended_ + shift);
  }
}

void Finished(const TensorTableEntry& entry, const Status& status) {
  // without a callback it is what a joined rank gives in the place of a tensor
  if (!Enabled() || entry.tap.submitted == 0 || entry.callback == nullptr) {
    return;
  }
  auto& mark = entry.tap;
  Record record{0,
                mark.handle,
                entry.process_set_id,
                entry.tensor == nullptr ? 0 : (int64_t)entry.tensor->size(),
                (int64_t)status.type(),
                -1,
                mark.submitted,
                0,
                0,
                0,
                Now()};
  std::lock_guard<std::mutex> guard(state.mutex);
  if (state.records.size() >= state.most_records) {
    state.lost++;
    return;
  }
  if (mark.buffer != nullptr) {
    record.responded = mark.buffer->responded;
    record.began = mark.buffer->began;
    record.ended = mark.buffer->ended;
    if (!mark.buffer->library.empty()) {
      record.library = IdOf(mark.buffer->library);
    }
  }
  record.name = IdOf(entry.tensor_name);
  state.records.push_back(record);
}

} // namespace tap
} // namespace common
} // namespace horovod

extern "C" {

// Version of this interface and of the layout of its records.
int horovod_tap_version() { return 1; }

// Start recording, with at most so many records between two reads; 0 stops it.
void horovod_tap_enable(int64_t most_records) {
  using namespace horovod::common::tap;
  std::lock_guard<std::mutex> guard(state.mutex);
  state.most_records = (std::size_t)most_records;
  if (most_records == 0) {
    std::vector<Record>().swap(state.records);
  }
  enabled.store(most_records > 0);
}

// Copy the oldest records into an array of `most`; return how many there were. Each is read once.
int64_t horovod_tap_read(void* into, int64_t most) {
  using namespace horovod::common::tap;
  std::lock_guard<std::mutex> reader(state.reading);
  if (state.read == state.taken.size()) {
    state.taken.clear();
    state.read = 0;
    std::lock_guard<std::mutex> guard(state.mutex);
    std::swap(state.records, state.taken);
  }
  auto count = std::min((std::size_t)most, state.taken.size() - state.read);
  if (count > 0) {
    std::memcpy(into, state.taken.data() + state.read, count * sizeof(Record));
  }
  state.read += count;
  return (int64_t)count;
}

// Return how many records were dropped because nobody has read.
int64_t horovod_tap_lost() {
  using namespace horovod::common::tap;
  std::lock_guard<std::mutex> guard(state.mutex);
  return state.lost;
}

// Copy a name, without its end if it is longer than `most`; return its length, or -1 if it is
// not known (any more).
int64_t horovod_tap_name(int64_t id, char* into, int64_t most) {
  using namespace horovod::common::tap;
  std::lock_guard<std::mutex> guard(state.mutex);
  auto place = id - state.first_id;
  if (place < 0 || place >= (int64_t)state.names.size()) {
    return -1;
  }
  auto& name = state.names[(std::size_t)place];
  std::memcpy(into, name.data(), std::min((std::size_t)most, name.size()));
  return (int64_t)name.size();
}

// Copy what was submitted and is not finished; return the bytes that this takes, which may be
// more than `most`, or -1 while the table of process sets changes.
//
// For each process set a line with its number and how many tensors this rank has ever
// submitted to it; then for each such tensor a line with its process set, handle and name.
int64_t horovod_tap_pending(char* into, int64_t most) {
  using namespace horovod::common;
  std::string sets, tensors;
  auto add = [&tensors](const TensorTableEntry& entry) {
    tensors += std::to_string(entry.process_set_id) + " " + std::to_string(entry.tap.handle) +
               " " + entry.tensor_name + "\n";
  };
  {
    auto& table = horovod_global.process_set_table;
    std::unique_lock<std::recursive_mutex> guard(table.mutex, std::try_to_lock);
    if (!guard.owns_lock()) {
      return -1;
    }
    for (auto id : table.Ids()) {
      int64_t submitted = table.Get(id).tensor_queue.Pending(add);
      sets += std::to_string(id) + " " + std::to_string(submitted) + "\n";
    }
  }
  {
    std::lock_guard<std::mutex> guard(tap::state.mutex);
    if (tap::state.executing != nullptr) {
      std::for_each(tap::state.executing->begin(), tap::state.executing->end(), add);
    }
  }
  auto all = sets + "\n" + tensors;
  std::memcpy(into, all.data(), std::min((std::size_t)most, all.size()));
  return (int64_t)all.size();
}

} // extern "C"
