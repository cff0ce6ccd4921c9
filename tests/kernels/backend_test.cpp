// Every op on a GPU against the CPU, the reference: one description per op (kernels/op_case.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/op_case.h"
#include "support/gpu_stream.h"

namespace lockstep::kernels::testing {
namespace {

std::vector<OpCase> all_cases() {
  std::vector<OpCase> all = row_cases();
  for (auto cases : {matmul_cases(), lora_cases(), attention_cases(), output_cases()})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

std::vector<std::vector<float>> run(const OpCase& op_case, Stream& stream) {
  Workbench bench(stream);
  const Prepared prepared = op_case.prepare(bench);
  prepared.launch();
  std::vector<std::vector<float>> outputs;
  for (const ConstTensor& output : prepared.outputs) outputs.push_back(bench.read(output));
  return outputs;
}

class BackendTest : public ::testing::TestWithParam<OpCase> {};

// Outputs begin as NaN, so an element that is not written shows.
void expect_written(const std::vector<std::vector<float>>& outputs, const char* device) {
  for (size_t i = 0; i < outputs.size(); ++i)
    for (size_t j = 0; j < outputs[i].size(); ++j)
      ASSERT_TRUE(std::isfinite(outputs[i][j])) << "output " << i << ", element " << j << " on the " << device;
}

double largest_of(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

TEST_P(BackendTest, CpuWritesEveryOutput) {
  Stream stream;
  const auto outputs = run(GetParam(), stream);
  expect_written(outputs, "CPU");
  for (size_t i = 0; i < outputs.size(); ++i)
    EXPECT_GT(largest_of(outputs[i]), 0) << "output " << i << " is all zeros: the case shows nothing";
}

TEST_P(BackendTest, GpuAgreesWithCpu) {
  if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  Stream cpu;
  lockstep::testing::GpuStream gpu;
  const auto wanted = run(GetParam(), cpu), got = run(GetParam(), gpu);
  expect_written(got, "GPU");
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), wanted[i].size());
    double difference = 0;
    for (size_t j = 0; j < got[i].size(); ++j)
      difference = std::max(difference, std::abs(static_cast<double>(wanted[i][j]) - got[i][j]));
    EXPECT_LE(difference, GetParam().tolerance * largest_of(wanted[i])) << "output " << i;
  }
}

// mma.sync for wgmma, cp.async for TMA, 99 KB of shared memory: other kernels, the same bits.
TEST_P(BackendTest, EveryGpuHasTheSameBits) {
  if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  struct Imitation {
    Imitation() { imitate_least_gpu(true); }
    ~Imitation() { imitate_least_gpu(false); }
  };
  lockstep::testing::GpuStream gpu, least;
  const auto wanted = run(GetParam(), gpu);
  const Imitation imitation;
  const auto got = run(GetParam(), least);
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), wanted[i].size());
    EXPECT_EQ(std::memcmp(got[i].data(), wanted[i].data(), got[i].size() * sizeof(float)), 0) << "output " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, BackendTest, ::testing::ValuesIn(all_cases()), [](const auto& info) {
  std::string name;
  for (const char c : info.param.name) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name + "_" + std::to_string(info.index);
});

}  // namespace
}  // namespace lockstep::kernels::testing
