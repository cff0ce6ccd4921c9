// lockstep train: when samples are drawn, and halves of a run on their own.
#include "cli/async_flags.h"

#include "app/arguments.h"

namespace lockstep::cli {
namespace {

bool notes(const std::string& more, const std::string& wanted) {
  for (const std::string& note : parse_train(train_args(more)).notes)
    if (note.find(wanted) != std::string::npos) return true;
  return false;
}

TEST(Asynchronous, ByArrival) {
  EXPECT_FALSE(train("").async.on);
  const recipes::RlOptions o = train(
      "--fully-async --max-weight-staleness 3 --async-max-concurrent-samples 32 --async-data-buffer-capacity-factor "
      "1.5 --async-unused-samples-handler retry --rollout-submission-granularity group");
  EXPECT_TRUE(o.async.on);
  EXPECT_EQ(o.async.max_staleness, 3);
  EXPECT_EQ(o.async.max_concurrent_samples, 32);
  EXPECT_EQ(o.async.buffer_factor, 1.5);
  EXPECT_TRUE(o.async.retry_stale);
  EXPECT_TRUE(o.async.recompute_policy);
  ASSERT_EQ(o.correction.rules.size(), 1u) << "AReaL's decoupled loss";
  EXPECT_EQ(o.correction.rules[0].high, 5);
  EXPECT_EQ(o.correction.rules[0].action, rl::CorrectionAction::mask);
  EXPECT_EQ(train("--fully-async --use-tis --tis-clip 3").correction.rules[0].high, 3);
  const recipes::RlOptions drawn = train("--fully-async --use-rollout-logprobs");
  EXPECT_FALSE(drawn.async.recompute_policy);
  EXPECT_TRUE(drawn.correction.rules.empty());
  EXPECT_FALSE(notes("--fully-async --use-rollout-logprobs", "bit for bit"));
  EXPECT_FALSE(notes("--fully-async --use-tis", "every weight is exactly 1"));
  EXPECT_TRUE(notes("--fully-async", "depend on timing"));
}

TEST(Asynchronous, WhatDoesNotGoTogetherIsRefusedByName) {
  rejects("--fully-async --partial-rollout", {"--fully-async", "--partial-rollout", "drop --partial-rollout"});
  rejects("--fully-async --max-staleness 1", {"--max-staleness", "--max-weight-staleness"});
  rejects("--fully-async --update-weights-interval 2", {"--update-weights-interval 1"});
  rejects("--fully-async --easy-threshold 0.9", {"--easy-threshold"});
  rejects("--fully-async --over-sampling-batch-size 16", {"--async-data-buffer-capacity-factor"});
  rejects("--fully-async --pause-generation-mode in_place", {"--pause-generation-mode", "in_place", "retract"});
  EXPECT_NO_THROW(train("--fully-async --pause-generation-mode retract"));
  rejects("--fully-async --rollout-submission-granularity sample", {"--rollout-submission-granularity sample"});
  rejects("--fully-async --n-samples-per-prompt 4 --advantage-estimator remax", {"remax"});
  rejects("--max-weight-staleness 1", {"--max-weight-staleness needs --fully-async"});
  rejects("--async-unused-samples-handler retry", {"needs --fully-async"});
  const std::string servers = " --rollout-engine vllm --rollout-external-engine-addrs a:1";
  EXPECT_TRUE(train("--fully-async" + servers).async.on);
  EXPECT_TRUE(notes("--fully-async" + servers, "goes on with the version that it began with"));
  rejects("--fully-async --sync-strategy weights" + servers, {"one version at a time", "--sync-strategy lora_adapter"});
  EXPECT_EQ(train("--max-staleness 2" + servers).staleness.max_staleness, 2);
  rejects("--max-staleness 2 --sync-strategy weights" + servers, {"--max-staleness", "one version at a time"});
}

TEST(Asynchronous, PartialRollouts) {
  const recipes::RlOptions o = train(
      "--partial-rollout --over-sampling-batch-size 16 --rollout-max-response-len 100 "
      "--mask-offpolicy-in-partial-rollout");
  EXPECT_TRUE(o.partial.on);
  EXPECT_TRUE(o.partial.mask_old);
  EXPECT_EQ(o.partial.tokens, 50);
  EXPECT_EQ(o.over_sampling, 16) << "groups beyond a rollout's are what goes on in the next";
  EXPECT_FALSE(notes("--partial-rollout --over-sampling-batch-size 16", "--over-sampling-batch-size"));
  EXPECT_EQ(train("--partial-rollout --partial-rollout-tokens 7").partial.tokens, 7);
  EXPECT_TRUE(notes("--partial-rollout", "a sample is cut after"));
  EXPECT_TRUE(notes("--partial-rollout", "--over-sampling-batch-size"));
  rejects("--partial-rollout --max-staleness 1", {"--partial-rollout", "--max-staleness 0"});
  rejects("--partial-rollout --rollout-stop END", {"--rollout-stop-token-ids"});
  rejects("--mask-offpolicy-in-partial-rollout", {"needs --partial-rollout"});
}

TEST(Debugging, HalvesOfARun) {
  const recipes::RlOptions o = train("--dump-details D");
  EXPECT_EQ(o.debug.save_rollouts, "D/rollout_data/{rollout_id}.jsonl");
  EXPECT_EQ(o.debug.save_training, "D/train_data/{rollout_id}_{rank}.jsonl");
  const recipes::RlOptions loaded = train(
      "--load-debug-rollout-data D/{rollout_id}.jsonl --eval-interval 2 "
      "--eval-prompt-data held out.jsonl");
  EXPECT_TRUE(loaded.debug.train_only) << "as in slime";
  EXPECT_EQ(loaded.eval_interval, 0);
  const recipes::RlOptions sampled = train("--debug-rollout-only --save-debug-rollout-data x --max-staleness 2");
  EXPECT_TRUE(sampled.debug.rollout_only);
  EXPECT_EQ(sampled.staleness.max_staleness, 0);
  EXPECT_TRUE(notes("--save-debug-rollout-data a/{rollout_id}.pt", "JSON Lines, not a file of torch"));
  rejects("--debug-train-only", {"--load-debug-rollout-data", "--save-debug-rollout-data"});
  rejects("--debug-train-only --debug-rollout-only --load-debug-rollout-data x",
          {"--debug-rollout-only", "--debug-train-only"});
  rejects("--save-debug-rollout-data a/{step}.jsonl", {"{step}", "{rollout_id} or {rank}"});
  rejects("--debug-rollout-only --save-debug-train-data x", {"--save-debug-train-data"});
  rejects("--save-debug-train-data x --actor-num-gpus-per-node 2", {"--save-debug-train-data", "{rank} in the path"});
  rejects("--debug-first-weight-sync 1", {"not available yet: --debug-first-weight-sync"});
}

}  // namespace
}  // namespace lockstep::cli
