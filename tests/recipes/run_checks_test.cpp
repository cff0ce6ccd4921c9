// Checks that a run is asked for: what passes, what fails, and that a run that fails one has saved.
#include "recipes/run_checks.h"

#include <limits>

#include "recipes/adapter.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

using testing::expect_error;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(RunChecks, MeanOfLogprobDifferences) {
  const RunChecks checks{.logprob_diff = 0.1};
  EXPECT_NO_THROW(check_rollout(checks, {.rollout = 3, .logprob_diff = 0.1, .logprob_diff_max = 5}));
  expect_error<CheckError>([&] { check_rollout(checks, {.rollout = 3, .logprob_diff = 0.11}); },
                           {"differ on average", "rollout 3", "0.11", "at most 0.1"});
  expect_error<CheckError>([&] { check_rollout(checks, {.logprob_diff = kNan}); }, {"nan"});
  expect_error<CheckError>([&] { check_rollout(checks, {.rollout = 2}); }, {"cannot be compared", "rollout 2"});
  EXPECT_NO_THROW(check_rollout({}, {.logprob_diff = 9, .logprob_diff_max = 9, .kl = 9}));
}

TEST(RunChecks, NoTokenDiffers) {
  const RunChecks checks{.equal_logprobs = true};
  EXPECT_NO_THROW(check_rollout(checks, {.logprob_diff = 0, .logprob_diff_max = 0}));
  expect_error<CheckError>([&] { check_rollout(checks, {.rollout = 1, .logprob_diff_max = 1e-7}); },
                           {"rollout 1", "1e-07", "0 for every token"});
}

TEST(RunChecks, TheFirstRolloutsKl) {
  const RunChecks checks{.equal_reference = true};
  EXPECT_NO_THROW(check_rollout(checks, {.rollout = 1}));
  EXPECT_NO_THROW(check_rollout(checks, {.rollout = 1, .kl = 1e-9}));
  EXPECT_NO_THROW(check_rollout(checks, {.rollout = 2, .kl = 0.5}));
  expect_error<CheckError>([&] { check_rollout(checks, {.rollout = 1, .kl = 1e-7}); }, {"differs from the reference"});
  EXPECT_THROW(check_rollout(checks, {.rollout = 1, .kl = kNan}), CheckError);
}

class RunChecksOfARun : public Training {
 protected:
  RlOptions checked(const std::string& save) {
    RlOptions options = rl(save);
    options.num_rollout = 2;
    options.use_kl_loss = true;
    options.checks = {
        .logprob_diff = 0, .equal_logprobs = true, .equal_reference = true, .equal_adapter = true, .equal_base = true};
    return options;
  }
};

TEST_F(RunChecksOfARun, AllHold) {
  run_rl(checked("a"), control_);
  EXPECT_EQ(metrics("a").size(), 2u);
  EXPECT_EQ(metrics("a")[0]["logprob_diff"].get<double>(), 0.0);
}

TEST_F(RunChecksOfARun, ARunThatFailsOneHasSaved) {
  run_rl(rl("first"), control_);
  RlOptions options = checked("second");  // starts from what was trained, which is not the reference
  options.adapter.adapter_path = (dir_ / "first/iter_0000004/lora_adapter").string();
  options.save.save_interval = 100;
  expect_error<CheckError>([&] { run_rl(options, control_); }, {"differs from the reference", "rollout 1"});
  EXPECT_EQ(checkpoint::latest_iteration(options.save.save), 1);
  EXPECT_EQ(metrics("second").size(), 1u);
  try {
    throw CheckError({.what = "x"});
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 8);
    EXPECT_STREQ(error.kind(), "CheckError");
  }
}

TEST_F(RunChecksOfARun, PublishedAdapterAndBaseAreComparedByteForByte) {
  Stream stream({.threads = 1});
  const Base base = load_base({.hf_checkpoint = kArith, .stream = {}}, stream, control_);
  const lora::LoraConfig config{.rank = 4, .target_modules = {"all-linear"}};
  const lora::AdapterVersion one = fresh_adapter(config, base, 1), other = fresh_adapter(config, base, 2);
  const RunChecks checks{.equal_adapter = true, .equal_base = true};
  EXPECT_NO_THROW(check_published(checks, one, one, stream));
  EXPECT_THROW(check_published(checks, one, other, stream), CheckError);
  EXPECT_NO_THROW(check_published({}, one, other, stream));

  const BaseCheck check(checks, *base.model, stream), unasked({}, *base.model, stream);
  EXPECT_NO_THROW(check.at_end());
  // A bit of the embedding flips.
  auto* bytes = static_cast<unsigned char*>(const_cast<Buffer&>(base.model->weights().embedding.weight.panels).data());
  bytes[3] ^= 1;
  EXPECT_THROW(check.at_end(), CheckError);
  EXPECT_NO_THROW(unasked.at_end());
  bytes[3] ^= 1;
  EXPECT_NO_THROW(check.at_end());
}

}  // namespace
}  // namespace lockstep::recipes
