// Whatever the delays of training, sampling and rewards: what is trained is a function of the seed and the rule.
#include "recipes/random_delays.h"

#include <fmt/format.h>

#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

class RandomDelays : public Training {
 protected:
  // Rewards by three programs, each of which sleeps up to 40 ms before an answer, at random by `seed`; 0: at once.
  RlOptions ahead(const std::string& save, StalenessRule rule, unsigned seed) {
    RlOptions options = rl(save);
    options.num_rollout = 6;
    options.staleness = rule;
    options.checks.equal_logprobs = true;  // every log-prob is that of the version that sampled it
    options.reward.choices = {{.kind = rl::RewardKind::command}};
    options.reward.workers = 3;
    const std::string sleep = seed == 0 ? "" : R"(sleep $(printf 0.%03d $((RANDOM % 40))); )";
    options.reward.command = fmt::format(
        R"(bash -c 'RANDOM=$(({} + $$)); while read -r line; do {}[[ $line =~ \"id\":([0-9]+) ]]; id=${{BASH_REMATCH[1]}}; )"
        R"([[ $line =~ \"response_length\":([0-9]+) ]]; echo "{{\"id\":$id,\"reward\":$((BASH_REMATCH[1] % 3))}}"; done')",
        seed, sleep);
    return options;
  }
};

TEST_F(RandomDelays, ChangeNothingOfARunByRule) {
  unsigned seed = 0;
  for (const StalenessRule rule :
       {StalenessRule{0, 1}, StalenessRule{1, 1}, StalenessRule{2, 1}, StalenessRule{2, 2}}) {
    const std::string whole = fmt::format("whole-{}-{}", rule.max_staleness, rule.update_interval);
    control_.interrupted = [] { return false; };
    run_rl(ahead(whole, rule, 0), control_);
    ASSERT_EQ(results(whole).size(), 6u);
    EXPECT_GT(results(whole).back()["reward"], 0.0) << "the programs graded";
    for (int time = 0; time < 2; ++time) {
      const std::string delayed = fmt::format("delayed-{}", ++seed);
      control_.interrupted = random_delays(seed, std::chrono::milliseconds(60));
      RlOptions options = ahead(delayed, rule, seed);
      options.training.max_tokens = 64;  // more micro-batches, so more delays
      options.save.arguments = {};
      run_rl(options, control_);
      EXPECT_EQ(adapter_bytes(delayed, 6), adapter_bytes(whole, 6)) << whole << " with delays of seed " << seed;
      EXPECT_EQ(results(delayed), results(whole)) << whole << " with delays of seed " << seed;
    }
  }
}

}  // namespace
}  // namespace lockstep::recipes
