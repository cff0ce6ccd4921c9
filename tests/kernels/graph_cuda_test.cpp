// Recorded graphs and memory on a GPU that several threads use: nobody disturbs a recording, one that fails leaves the
// stream as it was, and memory is not handed out again before its last use.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "core/graph.h"
#include "kernels/elementwise.h"
#include "support/gpu.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kRows = 64, kWidth = 256;
constexpr size_t kBytes = static_cast<size_t>(kRows * kWidth) * sizeof(float);

class GraphCuda : public testing::OnGpu<> {
 protected:
  void make() override {
    sum_ = device_copy(std::vector<float>(kRows * kWidth, 0.0f).data(), kBytes, gpu());
    one_ = device_copy(std::vector<float>(kRows * kWidth, 1.0f).data(), kBytes, gpu());
  }
  static Tensor tensor(const Buffer& buffer) { return Tensor(buffer.data(), DType::f32, {kRows, kWidth}); }
  void add_one(int times) {
    for (int i = 0; i < times; ++i) kernels::add(tensor(sum_), tensor(one_), gpu());
  }
  void add_beside(int times) {
    gpu().beside([&] { add_one(times); }, [] {});
  }
  void expect_sum(float wanted) {
    for (const float value : testing::values_of(tensor(sum_), gpu())) ASSERT_EQ(value, wanted);
  }

  Buffer sum_, one_;
};

TEST_F(GraphCuda, LaunchesDoWhatWasRecorded) {
  const Graph graph = Graph::record(gpu(), [&] { add_one(3), add_beside(4); });
  expect_sum(0);
  for (int i = 0; i < 5; ++i) graph.launch(gpu());
  expect_sum(35);
}

TEST_F(GraphCuda, ARecordingThatFailsLeavesTheStreamAsItWas) {
  const auto wait = [&] { gpu().synchronize(); };  // what a recording must not do
  const auto fail = [] { throw std::runtime_error("inside"); };
  const std::vector<std::function<void()>> works = {
      [&] { add_one(1), wait(); },
      [&] { add_one(1), fail(); },
      [&] { gpu().beside([&] { add_one(1), wait(); }, [] {}); },
      [&] { gpu().beside([&] { add_one(1), fail(); }, [] {}); },
      [&] { gpu().beside([&] { add_one(1); }, wait); },
      [&] { gpu().beside([&] { add_one(1); }, fail); },
  };
  const auto queues = gpu().queues();
  float wanted = 0;
  for (size_t i = 0; i < works.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_ANY_THROW(Graph::record(gpu(), works[i]));
    EXPECT_EQ(gpu().queues(), queues);
    EXPECT_TRUE(gpu().recover());
    add_one(1), add_beside(1);
    Graph::record(gpu(), [&] { add_one(1), add_beside(1); }).launch(gpu());
    expect_sum(wanted += 4);
  }
}

// An error is told to whoever made the call that failed, and to nobody after it.
TEST_F(GraphCuda, AnErrorIsToldOnce) {
  EXPECT_THROW(Graph::record(gpu(), [&] { gpu().synchronize(); }), DeviceError);
  EXPECT_NO_THROW(add_one(1));
  EXPECT_THROW(Buffer(size_t{1} << 50, Buffer::Fill::none, Device::cuda), ResourceError);
  EXPECT_NO_THROW(add_one(1));
  expect_sum(2);
}

// What threads beside the engine do: memory comes and goes, streams too, adapters are uploaded and rounded.
TEST_F(GraphCuda, OtherThreadsDisturbNoRecording) {
  std::atomic<bool> stop = false;
  std::atomic<int64_t> rounds = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      while (!stop) try {
          Stream own({.threads = 1, .device = Device::cuda});
          for (int i = 0; i < 20; ++i, ++rounds) {
            const std::vector<float> values(kRows * kWidth, static_cast<float>(t + i));
            const Buffer placed = device_copy(values.data(), kBytes, own);
            const Buffer zeros(kBytes, Buffer::Fill::zero, Device::cuda);
            kernels::add(tensor(zeros), tensor(placed), own);
            if (i % 5 == 0) own.synchronize();
            ASSERT_EQ(testing::values_of(tensor(zeros), own), values);
          }
          cuda_info();
        } catch (const std::exception& error) {
          ADD_FAILURE() << "beside a recording: " << error.what();
          return;
        }
    });
  int64_t recordings = 0;
  for (const auto end = std::chrono::steady_clock::now() + 2s; std::chrono::steady_clock::now() < end; ++recordings) {
    Graph graph;
    ASSERT_NO_THROW(graph = Graph::record(gpu(), [&] { add_one(100), add_beside(20); })) << recordings;
    graph.launch(gpu());
    if (recordings % 16 == 0) expect_sum(static_cast<float>(recordings + 1) * 120);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(recordings, 10);
  EXPECT_GT(rounds, 10);
  expect_sum(static_cast<float>(recordings) * 120);
}

// The memory that is let go is still read by what was queued before; another thread takes it meanwhile.
TEST_F(GraphCuda, MemoryIsHandedOutAgainAfterItsLastUse) {
  constexpr size_t kLarge = size_t{64} << 20;
  for (int round = 0; round < 5; ++round) {
    const std::vector<std::byte> ones(kLarge, std::byte{1});
    Buffer from = device_copy(ones.data(), kLarge, gpu());
    const Buffer between(kLarge, Buffer::Fill::none, Device::cuda), last(kLarge, Buffer::Fill::zero, Device::cuda);
    gpu().synchronize();
    for (int i = 0; i < 200; ++i) copy(between.data(), from.data(), kLarge, gpu());
    copy(last.data(), from.data(), kLarge, gpu());
    std::thread other([gone = std::move(from)]() mutable {
      Stream own({.threads = 1, .device = Device::cuda});
      gone = Buffer();
      const Buffer taken(kLarge, Buffer::Fill::none, Device::cuda);
      zero(taken.data(), kLarge, own);
      own.synchronize();
    });
    other.join();
    std::vector<std::byte> got(kLarge);
    download(got.data(), last.data(), kLarge, gpu());
    ASSERT_EQ(got, ones) << round;
  }
}

}  // namespace
}  // namespace lockstep
