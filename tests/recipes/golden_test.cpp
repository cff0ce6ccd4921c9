// Our numbers against transformers + PEFT in float32. Relative error = max|a-b| / max|b| per tensor; log-probs and
// entropies absolute. (On a GPU: golden_cuda_test.cpp.)
#include <gtest/gtest.h>

#include <cstring>

#include "core/error.h"
#include "recipes/golden_case.h"

namespace lockstep::golden {
namespace {

using testing::kSameArithmetic;

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  Stream stream_{{.threads = 2}};
  const Case case_{GetParam(), stream_};
};

TEST_P(Golden, Logits) {
  expect_golden(case_, logits_of(case_), kSameArithmetic);
}

TEST_P(Golden, LogprobsEntropiesAndGradientsOfTheMeanLoss) {
  for (const auto recompute :
       {model::Recompute::none, model::Recompute::norms, model::Recompute::selective, model::Recompute::full})
    expect_golden(case_, sft_numbers(case_, recompute), kSameArithmetic);
}

TEST_P(Golden, GradientsOfLogprobAndEntropyAtTemperature) {
  expect_golden(case_, rl_numbers(case_), kSameArithmetic);
}

// The file's bytes can be made again from the packed weights.
TEST_P(Golden, VisitGivesTheFileBack) {
  const NamedTensors& files = case_.files.tensors();
  size_t next = 0;
  case_.model->weights().visit(
      case_.config,
      [&](const NamedTensor& tensor) {
        ASSERT_LT(next, files.size());
        const NamedTensor& file = files[next++];
        ASSERT_EQ(tensor.name, file.name);
        ASSERT_EQ(shape_text(tensor.tensor), shape_text(file.tensor));
        std::vector<std::byte> bytes(file.bytes());
        file.read(bytes.data(), 0, bytes.size());
        EXPECT_EQ(std::memcmp(tensor.tensor.data, bytes.data(), bytes.size()), 0) << file.name;
      },
      stream_);
  EXPECT_EQ(next, files.size());
}

INSTANTIATE_TEST_SUITE_P(Families, Golden, ::testing::ValuesIn(families()),
                         [](const auto& info) { return info.param; });

TEST(GoldenAdapters, PatternsRegexAndLayers) {
  Stream stream({.threads = 2});
  const Case c("qwen3", stream);
  for (const std::string name : {"pattern", "regex", "layers"}) {
    const lora::AdapterVersion adapter = c.adapter("adapter_" + name);
    const Numbers got = {{"extra." + name + ".logits.0", logits(c, c.tokens(0), &adapter)}};
    expect_golden(c, got, kSameArithmetic);
  }
}

}  // namespace
}  // namespace lockstep::golden
