#include "recipes/step_line.h"

#include <gtest/gtest.h>

namespace lockstep::recipes {
namespace {

TEST(StepLine, OfUsualSteps) {
  EXPECT_EQ(rollout_line({.step = 12,
                          .of = 1000,
                          .reward = 0.5117,
                          .entropy = 0.41239,
                          .response_len = 812.4,
                          .logprob_diff = 0,
                          .tokens_per_s = 12345.4,
                          .kl = 0.00123,
                          .left = "1h04m left"}),
            "rollout 12/1000: reward 0.512, kl 0.001, entropy 0.412, len 812, diff 0, 12345 tok/s, 1h04m left");
  EXPECT_EQ(supervised_line({.step = 3,
                             .of = 10,
                             .loss = 2.302585,
                             .grad_norm = 0.98765,
                             .lr = 1e-4,
                             .tokens_per_s = 87.65,
                             .tokens = 4096,
                             .left = "8.2s left"}),
            "step 3/10: loss 2.3026, grad_norm 0.988, lr 1.00e-04, 4096 tokens, 87.65 tok/s, 8.2s left");
  EXPECT_EQ(
      supervised_line(
          {.step = 3,
           .of = 10,
           .loss = 0.6931472,
           .grad_norm = 12.3456,
           .lr = 5e-6,
           .tokens_per_s = 1234.5,
           .tokens = 4096,
           .preference = train::Metrics{.reward_chosen = 0.1, .reward_rejected = -0.25, .reward_accuracy = 0.8125},
           .left = "3m12s left"}),
      "step 3/10: loss 0.69315, margin 0.350, accuracy 0.812, grad_norm 12.35, 1234 tok/s, 3m12s left");
  EXPECT_EQ(evaluation_line(
                {.name = "held_out", .step = 20, .loss = 1.5, .accuracy = 0.25, .tokens = 300, .perplexity = 4.4817}),
            "eval held_out after 20 steps: loss 1.5, perplexity 4.4817, token accuracy 0.250, 300 tokens");
}

// 100 columns do not wrap, whatever the numbers are, and what matters most is there.
TEST(StepLine, FitsWhateverTheNumbersAre) {
  for (const double value : {0.0, -0.0004, 1234567.0, -9.99e99, 3.3e-300, 99999.4, -99.996, 1.0 / 0.0, 0.0 / 0.0})
    for (const int64_t steps : {int64_t{1}, int64_t{100'000}, int64_t{1} << 40})
      for (const char* left : {"", "8.2s left", "123456h04m left"}) {
        const std::string rollout = rollout_line({.step = steps,
                                                  .of = steps,
                                                  .reward = value,
                                                  .entropy = value,
                                                  .response_len = value,
                                                  .logprob_diff = value,
                                                  .tokens_per_s = value,
                                                  .kl = value,
                                                  .left = left});
        const train::Metrics pair{.reward_chosen = value, .reward_rejected = 0, .reward_accuracy = value};
        const SupervisedStep step{.step = steps,
                                  .of = steps,
                                  .loss = value,
                                  .grad_norm = value,
                                  .lr = value,
                                  .tokens_per_s = value,
                                  .tokens = steps,
                                  .preference = pair,
                                  .left = left};
        const std::string evaluation = evaluation_line({.name = std::string(300, 'n'),
                                                        .step = steps,
                                                        .loss = value,
                                                        .accuracy = value,
                                                        .tokens = steps,
                                                        .perplexity = value,
                                                        .preference = pair});
        for (const std::string& line : {rollout, supervised_line(step), evaluation})
          EXPECT_LE(line.size(), 100u) << line;
        EXPECT_NE(rollout.find("diff "), std::string::npos);
        EXPECT_TRUE(rollout.ends_with(left));
        EXPECT_TRUE(supervised_line(step).ends_with(left));
        EXPECT_NE(evaluation.find("loss "), std::string::npos);
      }
}

TEST(StepLine, NumbersAreShort) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(0.51234), "0.512");
  EXPECT_EQ(short_number(-12.345), "-12.35");
  EXPECT_EQ(short_number(999.96), "1000.0");
  EXPECT_EQ(short_number(1536), "1536");
  EXPECT_EQ(short_number(0.0000012), "1.2e-06");
  EXPECT_EQ(short_number(123456789), "1.2e+08");
}

}  // namespace
}  // namespace lockstep::recipes
