// A GPU's numbers against transformers + PEFT in float32, and against the CPU with the same bf16 weights.
#include <gtest/gtest.h>

#include "recipes/golden_case.h"

namespace lockstep::golden {
namespace {

using testing::kRounded;

class GoldenCuda : public testing::OnGpu<::testing::TestWithParam<std::string>> {
 protected:
  void make() override {
    here_ = std::make_unique<Case>(GetParam(), gpu());
    reference_ = std::make_unique<Case>(GetParam(), cpu(), Storage::bf16);
  }
  std::unique_ptr<Case> here_, reference_;
};

TEST_P(GoldenCuda, Logits) {
  const Numbers got = logits_of(*here_);
  expect_golden(*here_, got, kRounded);
  expect_near(got, logits_of(*reference_), kRounded);
}

TEST_P(GoldenCuda, LogprobsEntropiesAndGradientsOfTheMeanLoss) {
  const Numbers kept = sft_numbers(*here_, model::Recompute::none);
  expect_golden(*here_, kept, kRounded);
  expect_near(kept, sft_numbers(*reference_, model::Recompute::selective), kRounded);
  EXPECT_EQ(kept, sft_numbers(*here_, model::Recompute::full)) << "recomputed";
}

TEST_P(GoldenCuda, GradientsOfLogprobAndEntropyAtTemperature) {
  const Numbers got = rl_numbers(*here_);
  expect_golden(*here_, got, kRounded);
  expect_near(got, rl_numbers(*reference_), kRounded);
}

TEST_P(GoldenCuda, AdaptersChosenByPatternRegexAndLayers) {
  if (GetParam() != "qwen3") return;  // the one that has them
  for (const std::string name : {"pattern", "regex", "layers"}) {
    const lora::AdapterVersion adapter = here_->adapter("adapter_" + name);
    expect_golden(*here_, {{"extra." + name + ".logits.0", logits(*here_, here_->tokens(0), &adapter)}}, kRounded);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenCuda, ::testing::ValuesIn(families()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep::golden
