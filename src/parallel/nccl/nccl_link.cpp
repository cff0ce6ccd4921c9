#include "parallel/nccl/nccl_link.h"

#include <future>
#include <thread>

#include "core/error.h"
#include "core/gpu.h"
#include "core/memory.h"

namespace lockstep::parallel::nccl {

namespace {

constexpr std::chrono::seconds kRelease{5};  // that NCCL is given to let go of a communicator
constexpr std::chrono::seconds kReason{2};   // in which the group says why a communicator has failed, if it knows

// Both ends of a communicator's life have been seen to hang. Then this process has to end without them.
void within_time(Result (*function)(Comm*), Comm* comm) noexcept {
  try {
    std::packaged_task<void()> task([function, comm] { function(comm); });
    std::future<void> done = task.get_future();
    std::thread thread(std::move(task));
    if (done.wait_for(kRelease) == std::future_status::ready)
      thread.join();
    else
      thread.detach();
  } catch (...) {  // no thread: the communicator stays
  }
}

// Short waits are spent looking, long ones asleep.
class Patience {
 public:
  void rest() {
    if (++turns_ < kLooks)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(turns_ < 10 * kLooks ? 20 : 1000));
  }

 private:
  static constexpr int kLooks = 2000;
  int turns_ = 0;
};

}  // namespace

Link::Link(Library library, const UniqueId& id, Group& group, std::chrono::milliseconds deadline, Stream& stream)
    : library_(std::move(library)), group_(group), deadline_(deadline) {
  Config config;
  const Result result = library_.init(&comm_, group.size(), id, group.rank(), &config);
  try {
    check(result, "ncclCommInitRankConfig");
    settle("ncclCommInitRankConfig");
    connect_all(stream);
  } catch (...) {
    give_up();
    throw;
  }
}

Link::~Link() {
  if (comm_ == nullptr) return;
  if (group_.failed())
    give_up();
  else
    within_time(library_.destroy, comm_);
}

void Link::give_up() noexcept {
  if (comm_ != nullptr) within_time(library_.abort, comm_);
  comm_ = nullptr;
}

void Link::fail(Result result, const char* what) {
  const char* const detail = comm_ != nullptr ? library_.last_error(comm_) : nullptr;
  const Fault fault{.what = "NCCL failed",
                    .where = what,
                    .got = std::string(library_.error_string(result)) +
                           (detail != nullptr && *detail != 0 ? std::string(": ") + detail : ""),
                    .attempt = "NCCL_DEBUG=INFO, which makes it say more"};
  give_up();
  // A communicator often fails because a rank has gone, which the group knows better.
  for (const Time until = std::chrono::steady_clock::now() + kReason; std::chrono::steady_clock::now() < until;) {
    group_.check();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  group_.fail(fault, DeviceError(Fault{}).exit_code());
  throw DeviceError(fault);
}

void Link::check(Result result, const char* what) {
  if (result != kSuccess && result != kInProgress) fail(result, what);
}

void Link::look(const char* what, Time until) {
  if (group_.failed()) {
    give_up();
    group_.check();
  }
  if (std::chrono::steady_clock::now() < until) return;
  give_up();
  const Fault fault{.what = "NCCL did not end a call within its deadline",
                    .where = what,
                    .got = "no answer",
                    .wanted = "within " + std::to_string(deadline_.count()) + " ms"};
  group_.fail(fault, Cancelled(Fault{}).exit_code());
  throw Cancelled(fault);
}

void Link::settle(const char* what) {
  const Time until = std::chrono::steady_clock::now() + deadline_;
  for (Patience patience;; patience.rest()) {
    Result state = kInProgress;
    check(library_.async_error(comm_, &state), what);
    if (state == kSuccess) return;
    check(state, what);
    look(what, until);
  }
}

void Link::require_connected() const {
  if (comm_ == nullptr) throw DeviceError({.what = "the GPUs of the ranks are no longer connected"});
}

void Link::exchange(std::span<const Transfer> transfers, Stream& stream) {
  require_connected();
  check(library_.group_start(), "ncclGroupStart");
  for (const auto& [rank, to, from] : transfers) {
    if (!to.empty()) check(library_.send(to.data(), to.size(), kInt8, rank, comm_, stream.native()), "ncclSend");
    if (!from.empty())
      check(library_.receive(from.data(), from.size(), kInt8, rank, comm_, stream.native()), "ncclRecv");
  }
  check(library_.group_end(), "ncclGroupEnd");
  settle("ncclGroupEnd");
}

void Link::add_two(Tensor total, ConstTensor partial, Stream& stream) {
  require_connected();
  check(library_.all_reduce(partial.f32(), total.f32(), static_cast<size_t>(total.elements()), kFloat32, kSum, comm_,
                            stream.native()),
        "ncclAllReduce");
  settle("ncclAllReduce");
}

void Link::wait(Stream& stream) {
  const Time until = std::chrono::steady_clock::now() + deadline_;
  for (Patience patience; !is_done(stream); patience.rest()) {
    require_connected();
    Result state = kSuccess;
    check(library_.async_error(comm_, &state), "waiting for the GPUs of other ranks");
    check(state, "waiting for the GPUs of other ranks");
    look("waiting for the GPUs of other ranks", until);
  }
}

void Link::connect_all(Stream& stream) {
  const auto ranks = static_cast<size_t>(group_.size());
  constexpr size_t kBytes = 256;
  const Buffer out(ranks * kBytes, Buffer::Fill::zero, stream.device()),
      in(ranks * kBytes, Buffer::Fill::zero, stream.device());
  std::vector<Transfer> transfers;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const size_t at = static_cast<size_t>(rank) * kBytes;
    if (rank == group_.rank()) continue;
    transfers.push_back({.rank = rank,
                         .to = {static_cast<const std::byte*>(out.data()) + at, kBytes},
                         .from = {static_cast<std::byte*>(in.data()) + at, kBytes}});
  }
  exchange(transfers, stream);
  if (ranks == 2) {
    constexpr int64_t kFloats = kBytes / sizeof(float);
    add_two(Tensor(in.f32(), DType::f32, {kFloats}), ConstTensor(out.f32(), DType::f32, {kFloats}), stream);
  }
  wait(stream);
}

}  // namespace lockstep::parallel::nccl
