#include "core/stream.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/memory.h"

namespace lockstep {

namespace {

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

CpuIsa resolve_isa(CpuIsa wanted) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!avx2)
    throw DeviceError({.what = "this CPU is too old", .got = "no AVX2 and FMA", .wanted = "x86-64-v3 or newer"});
  if (wanted == CpuIsa::best) return avx512 ? CpuIsa::avx512 : CpuIsa::avx2;
  if (wanted == CpuIsa::avx512 && !avx512)
    throw DeviceError({.what = "instruction set not available",
                       .where = "StreamOptions::isa avx512",
                       .got = "a CPU without AVX-512 F, BW, DQ and VL",
                       .attempt = "StreamOptions::isa auto"});
  if (wanted == CpuIsa::neon)
    throw DeviceError(
        {.what = "instruction set not available", .got = "neon on x86-64", .attempt = "StreamOptions::isa auto"});
  return wanted;
#else
  if (wanted != CpuIsa::best && wanted != CpuIsa::neon)
    throw DeviceError({.what = "instruction set not available",
                       .where = "StreamOptions::isa",
                       .got = cpu_isa_name(wanted),
                       .attempt = "StreamOptions::isa auto"});
  return CpuIsa::neon;
#endif
}

// How long a worker spins for the next task before it sleeps: a decode step is a train of ops a few microseconds apart,
// and waking a sleeping thread costs more than most of them. Where threads outnumber cores nobody spins: the thread
// that is waited for may need the very core.
constexpr int kSpins = 20000;

// Signals belong to the thread that runs the program, never to a worker: threads start with the mask of their creator.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

int max_threads() {
  return std::max(16, 4 * available_cores());
}

CpuIsa parse_cpu_isa(std::string_view name) {
  if (name == "auto") return CpuIsa::best;
  if (name == "avx2") return CpuIsa::avx2;
  if (name == "avx512") return CpuIsa::avx512;
  throw ConfigError({.what = "unknown instruction set",
                     .where = "StreamOptions::isa",
                     .got = std::string(name),
                     .wanted = "auto, avx2 or avx512"});
}

const char* cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::best: return "auto";
    case CpuIsa::avx2: return "avx2";
    case CpuIsa::avx512: return "avx512";
    case CpuIsa::neon: return "neon";
  }
  return "?";
}

struct Stream::Impl {
  Device device = Device::cpu;
  void* native = nullptr;
  std::shared_ptr<void> kernel_state;
  void *side = nullptr, *forked = nullptr, *joined = nullptr;  // the second queue and its events
  std::shared_ptr<void> side_state;

  CpuIsa isa = CpuIsa::avx2;
  int spins = kSpins;
  std::vector<std::thread> workers;
  std::vector<Buffer> scratch;

  // The task in flight. A thread owns an index when it has taken one from `remaining`; `finished` counts those that are
  // done. The caller waits for indices, never for threads: one that wakes late finds nothing left and goes on waiting.
  const std::function<void(int64_t, int)>* task = nullptr;
  int64_t count = 0;
  alignas(64) std::atomic<int64_t> remaining{0};
  alignas(64) std::atomic<int64_t> finished{0};
  alignas(64) std::atomic<int> asleep{0};
  std::atomic<bool> stopping{false};
  std::mutex mutex;
  std::condition_variable wake;
  std::exception_ptr failure;

  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stopping.store(true);
    }
    wake.notify_all();
    for (std::thread& worker : workers) worker.join();
    kernel_state.reset();
    side_state.reset();
    if (forked) cuda::destroy_event(forked);
    if (joined) cuda::destroy_event(joined);
    if (side) cuda::destroy_stream(side);
    if (native) cuda::destroy_stream(native);
  }

  void start(int threads) {
    spins = threads > available_cores() ? 0 : kSpins;
    scratch.resize(static_cast<size_t>(threads));
    const BlockedSignals blocked;
    for (int worker = 1; worker < threads; ++worker) workers.emplace_back([this, worker] { loop(worker); });
  }

  // Runs indices until none is left. `task` and `count` are those of the index taken: no other call of parallel() can
  // begin before it is finished.
  void work(int worker) {
    int64_t left = remaining.load(std::memory_order_acquire);
    while (left > 0) {
      if (!remaining.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire))
        continue;
      int64_t done = 1;
      try {
        (*task)(count - left, worker);
      } catch (...) {
        done += remaining.exchange(0, std::memory_order_acq_rel);  // nobody needs the rest
        std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
      finished.fetch_add(done, std::memory_order_release);
      left = remaining.load(std::memory_order_acquire);
    }
  }

  bool called() const { return remaining.load() > 0 || stopping.load(); }

  void loop(int worker) {
    while (!stopping.load()) {
      for (int spin = 0; spin < spins && !called(); ++spin) pause_cpu();
      if (!called()) {
        std::unique_lock lock(mutex);
        asleep.fetch_add(1);  // before the last look at `remaining`, as run() looks at it after setting that
        wake.wait(lock, [&] { return called(); });
        asleep.fetch_sub(1);
      }
      work(worker);
    }
  }

  void run(int64_t indices, const std::function<void(int64_t, int)>& f) {
    task = &f;
    count = indices;
    finished.store(0, std::memory_order_relaxed);
    remaining.store(indices);
    if (asleep.load() > 0) {
      std::lock_guard lock(mutex);
      wake.notify_all();
    }
    work(0);
    for (int spin = 0; finished.load(std::memory_order_acquire) != indices; ++spin) {
      if (spin < spins)
        pause_cpu();
      else
        std::this_thread::yield();
    }
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  }
};

Stream::Stream(StreamOptions options) : impl_(std::make_unique<Impl>()) {
  if (options.threads < 0 || options.threads > max_threads())
    throw ConfigError({.what = "impossible thread count",
                       .where = "StreamOptions::threads",
                       .got = std::to_string(options.threads),
                       .wanted = "1 to " + std::to_string(max_threads()) + " on this machine, or 0 for all cores"});
  impl_->isa = resolve_isa(options.isa);
  const int threads = options.threads > 0 ? options.threads : available_cores();
  try {
    impl_->start(threads);
  } catch (const std::system_error& error) {
    throw ResourceError(
        {.what = "a thread cannot be created",
         .where = "StreamOptions::threads",
         .got = error.what(),
         .wanted = std::to_string(threads) + " threads",
         .attempt = "fewer StreamOptions::threads, or a higher limit of memory (ulimit -v) or threads (ulimit -u)"});
  }
  if (options.device == Device::cpu) return;
  if (const std::string why = cuda_unusable(); !why.empty())
    throw DeviceError({.what = "no GPU can be used",
                       .where = "StreamOptions::device cuda",
                       .got = why,
                       .attempt = "StreamOptions::device cpu"});
  impl_->device = Device::cuda;
  impl_->native = cuda::make_stream(options.goes_first);
  impl_->side = cuda::make_stream(options.goes_first);
  impl_->forked = cuda::make_event();
  impl_->joined = cuda::make_event();
}

Stream::~Stream() = default;

Device Stream::device() const {
  return impl_->device;
}
void Stream::synchronize() {
  if (impl_->native) cuda::synchronize(impl_->native);
}
bool Stream::recover() noexcept {
  return impl_->device == Device::cpu || cuda::recover(impl_->native, impl_->side);
}
void* Stream::native() const {
  return impl_->native;
}
std::pair<void*, void*> Stream::queues() const {
  return {impl_->native, impl_->side};
}
void Stream::beside(const std::function<void()>& work, const std::function<void()>& meanwhile) {
  if (impl_->device == Device::cpu) return work(), meanwhile();
  Impl& impl = *impl_;
  cuda::record_event(impl.forked, impl.native);
  cuda::wait_event(impl.forked, impl.side);
  const auto change_queues = [&] {
    std::swap(impl.native, impl.side);
    std::swap(impl.kernel_state, impl.side_state);
  };
  // The queues change back and meet again however this ends: a recording is ended where it was begun.
  std::exception_ptr failure;
  const auto attempt = [&](const std::function<void()>& part) {
    try {
      part();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  };
  change_queues();
  attempt(work);
  attempt([&] { cuda::record_event(impl.joined, impl.native); });
  change_queues();
  if (!failure) attempt(meanwhile);
  attempt([&] { cuda::wait_event(impl.joined, impl.native); });
  if (failure) std::rethrow_exception(failure);
}

std::shared_ptr<void>& Stream::kernel_state() {
  return impl_->kernel_state;
}

int Stream::threads() const {
  return static_cast<int>(impl_->scratch.size());
}
CpuIsa Stream::isa() const {
  return impl_->isa;
}

void Stream::parallel(int64_t count, const std::function<void(int64_t, int)>& task) {
  if (count <= 0) return;
  if (count == 1 || impl_->workers.empty()) {
    for (int64_t i = 0; i < count; ++i) task(i, 0);
    return;
  }
  impl_->run(count, task);
}

void* Stream::scratch(int worker, size_t bytes) {
  Buffer& buffer = impl_->scratch[static_cast<size_t>(worker)];
  if (buffer.bytes() < bytes) buffer = Buffer(std::max(bytes, buffer.bytes() * 2), Buffer::Fill::none);
  return buffer.data();
}

}  // namespace lockstep
