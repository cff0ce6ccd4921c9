#include "core/device.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "core/error.h"
#include "core/graph.h"
#include "core/memory.h"
#include "core/stream.h"

namespace lockstep {
namespace {

TEST(Device, NamesAreParsed) {
  EXPECT_EQ(parse_device("cpu"), Device::cpu);
  EXPECT_EQ(parse_device("auto"), cuda_unusable().empty() ? Device::cuda : Device::cpu);
  EXPECT_THROW(parse_device("tpu"), ConfigError);
}

TEST(Device, AGpuThatIsNotThereIsADeviceErrorThatSaysWhy) {
  const std::string why = cuda_unusable();
  if (why.empty()) return;  // there is one
  const auto says_why = [&](auto&& ask) {
    try {
      ask();
      ADD_FAILURE() << "no error";
    } catch (const DeviceError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  says_why([] { parse_device("cuda"); });
  says_why([] { Stream stream({.threads = 1, .device = Device::cuda}); });
  says_why([] { cuda_info(); });
}

TEST(Device, MemoryIsCountedPerDevice) {
  const int64_t cpu = live_bytes(), gpu = live_bytes(Device::cuda);
  const Buffer buffer(1000);
  EXPECT_EQ(live_bytes() - cpu, 1000);
  EXPECT_EQ(live_bytes(Device::cuda), gpu);
  EXPECT_EQ(buffer.device(), Device::cpu);
}

TEST(Stream, OnTheCpuWhatRunsBesideRunsInTurnAndPassesErrorsOn) {
  Stream stream({.threads = 1});
  int order = 0;
  stream.beside([&] { EXPECT_EQ(order++, 0); }, [&] { EXPECT_EQ(order++, 1); });
  EXPECT_EQ(order, 2);
  const auto fails = [] { throw std::runtime_error("inside"); };
  EXPECT_THROW(stream.beside(fails, [] {}), std::runtime_error);
  EXPECT_THROW(stream.beside([] {}, fails), std::runtime_error);
}

TEST(Graph, ACpuHasNone) {
  Stream stream({.threads = 1});
  EXPECT_THROW(Graph::record(stream, [] { ADD_FAILURE() << "was run"; }), DeviceError);
}

}  // namespace
}  // namespace lockstep
