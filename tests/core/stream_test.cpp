#include "core/stream.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"

namespace lockstep {
namespace {

TEST(Stream, ParallelCoversEveryIndexOnce) {
  for (int threads : {1, 2, 3, 8}) {
    Stream stream({.threads = threads});
    EXPECT_EQ(stream.threads(), threads);
    for (int64_t count : {0, 1, 2, 7, 8, 9, 1000, 100000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      std::atomic<bool> good_worker{true};
      stream.parallel(count, [&](int64_t index, int worker) {
        seen[static_cast<size_t>(index)].fetch_add(1);
        if (worker < 0 || worker >= threads) good_worker = false;
      });
      for (const auto& times : seen) ASSERT_EQ(times.load(), 1);
      EXPECT_TRUE(good_worker);
    }
  }
}

TEST(Stream, WritesOfWorkersAreSeenAfterwards) {
  Stream stream({.threads = 4});
  std::vector<int64_t> values(5000);
  stream.parallel(5000, [&](int64_t i, int) { values[static_cast<size_t>(i)] = i * i; });
  for (int64_t i = 0; i < 5000; ++i) ASSERT_EQ(values[static_cast<size_t>(i)], i * i);
}

TEST(Stream, ManyTinyCalls) {
  // Also where threads outnumber cores: the caller waits for the work, not for the scheduler to run every thread.
  for (const auto& [threads, calls] : {std::pair{1, 20000}, {2, 20000}, {5, 5000}}) {
    Stream stream({.threads = threads});
    std::vector<int> totals(4);
    for (int call = 0; call < calls; ++call)
      stream.parallel(4, [&](int64_t i, int) { ++totals[static_cast<size_t>(i)]; });
    for (int total : totals) EXPECT_EQ(total, calls);
  }
}

// Longer than the workers spin, so that they sleep between the calls.
TEST(Stream, WorkersWakeAfterAPause) {
  Stream stream({.threads = 3});
  for (int call = 0; call < 5; ++call) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int64_t> sum{0};
    stream.parallel(100, [&](int64_t i, int) { sum += i; });
    EXPECT_EQ(sum.load(), 4950);
  }
}

TEST(Stream, ExceptionsPropagateAndTheStreamLivesOn) {
  for (int threads : {1, 2, 4}) {
    Stream stream({.threads = threads});
    for (int64_t bad : {0, 1, 500, 999}) {
      try {
        stream.parallel(1000, [&](int64_t i, int) {
          if (i == bad) throw std::runtime_error("task " + std::to_string(i));
        });
        FAIL() << "nothing was thrown";
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(error.what(), "task " + std::to_string(bad));
      }
      std::atomic<int> done{0};
      stream.parallel(1000, [&](int64_t, int) { ++done; });
      EXPECT_EQ(done.load(), 1000);
    }
    EXPECT_THROW(stream.parallel(64, [](int64_t, int) { throw ShapeError({.what = "each one"}); }), ShapeError);
  }
}

TEST(Stream, ScratchBelongsToOneWorker) {
  Stream stream({.threads = 4});
  std::vector<void*> memory;
  for (int worker = 0; worker < 4; ++worker) {
    for (size_t bytes : {1u, 100u, 5000u}) {
      void* const scratch = stream.scratch(worker, bytes);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(scratch) % 64, 0u);
      std::memset(scratch, worker, bytes);
    }
    EXPECT_EQ(stream.scratch(worker, 10), stream.scratch(worker, 5000));
    memory.push_back(stream.scratch(worker, 5000));
  }
  for (int worker = 0; worker < 4; ++worker)
    for (size_t i = 0; i < 5000; ++i) ASSERT_EQ(static_cast<char*>(memory[static_cast<size_t>(worker)])[i], worker);
}

TEST(Stream, ThreadCounts) {
  EXPECT_GE(Stream().threads(), 1);
  EXPECT_GE(max_threads(), 16);
  EXPECT_EQ(Stream({.threads = max_threads()}).threads(), max_threads());
  for (int bad : {-1, max_threads() + 1, 1024, 1025, -1000000}) {
    try {
      Stream stream({.threads = bad});
      FAIL() << bad;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.fault().where, "StreamOptions::threads");
      EXPECT_EQ(error.fault().got, std::to_string(bad));
    }
  }
}

// Sanitizers need address space of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Stream, ARefusedThreadIsAnErrorAndNothingHangs) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  sigset_t mask_before, mask_after;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask_before);
  pthread_attr_t usual, large;
  pthread_getattr_default_np(&usual);
  pthread_attr_init(&large);
  constexpr size_t kStack = size_t{1} << 30;
  pthread_attr_setstacksize(&large, kStack);
  pthread_setattr_default_np(&large);
  // Room for three of the eight stacks.
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto now = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE));
  const rlimit tight{.rlim_cur = now + 3 * kStack + kStack / 2, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_AS, &tight);

  std::string where;
  try {
    Stream stream({.threads = 9});
  } catch (const ResourceError& error) {
    where = error.fault().where;
  }
  setrlimit(RLIMIT_AS, &before);
  pthread_setattr_default_np(&usual);
  pthread_attr_destroy(&usual);
  pthread_attr_destroy(&large);
  EXPECT_EQ(where, "StreamOptions::threads");
  pthread_sigmask(SIG_SETMASK, nullptr, &mask_after);
  for (int signal = 1; signal < 32; ++signal)
    EXPECT_EQ(sigismember(&mask_after, signal), sigismember(&mask_before, signal)) << signal;
}
#endif

// Where threads outnumber cores a call costs a round of the scheduler, not a time slice per thread.
TEST(Stream, ThreadsBeyondTheCoresDoNotSpin) {
  Stream stream({.threads = max_threads()});
  std::atomic<int64_t> sum{0};
  timespec begin, end;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
  constexpr int kCalls = 100;
  for (int call = 0; call < kCalls; ++call) stream.parallel(4, [&](int64_t i, int) { sum += i; });
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  EXPECT_EQ(sum.load(), 6 * kCalls);
  const double cpu_ms =
      static_cast<double>(end.tv_sec - begin.tv_sec) * 1e3 + static_cast<double>(end.tv_nsec - begin.tv_nsec) / 1e6;
  EXPECT_LT(cpu_ms / kCalls / max_threads(), 0.05) << "processor time per call and thread";
}

TEST(CpuIsa, NamesParseAndBestIsResolved) {
  EXPECT_EQ(parse_cpu_isa("auto"), CpuIsa::best);
  EXPECT_EQ(parse_cpu_isa("avx2"), CpuIsa::avx2);
  EXPECT_EQ(parse_cpu_isa("avx512"), CpuIsa::avx512);
  EXPECT_THROW(parse_cpu_isa("sse"), ConfigError);
  EXPECT_THROW(parse_cpu_isa(""), ConfigError);
  EXPECT_STREQ(cpu_isa_name(CpuIsa::avx2), "avx2");
  EXPECT_NE(Stream({.threads = 1}).isa(), CpuIsa::best);
#if defined(__x86_64__)
  EXPECT_EQ(Stream({.threads = 1, .isa = CpuIsa::avx2}).isa(), CpuIsa::avx2);
  EXPECT_THROW(Stream({.threads = 1, .isa = CpuIsa::neon}), DeviceError);
#endif
}

}  // namespace
}  // namespace lockstep
