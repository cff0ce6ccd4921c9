// Rewards, failures, time-outs and what is dropped for them are decided once, whatever the number of ranks.
#include "recipes/ranks_fixture.h"

namespace lockstep::recipes {
namespace {

class RanksWithRewards : public RanksOfThreads {
 protected:
  RlOptions two_rollouts(const std::string& save) {
    RlOptions options = rl(save);
    options.num_rollout = 2;
    options.shuffle = false;  // the first prompts of the file
    return options;
  }

  // A program that answers by `verdicts`, a shell function of what follows "prompt":" and "response":" in a request,
  // and prints the rest of an answer.
  static void grade_by(RlOptions& options, const std::string& verdicts) {
    options.reward.choices = {{.kind = rl::RewardKind::command}};
    options.reward.workers = 2;
    options.reward.command = "verdict() { " + verdicts +
                             "; }; while read -r line; do id=${line#*\\\"id\\\":}; id=${id%%,*}; "
                             "echo \"{\\\"id\\\":$id,$(verdict \"${line#*\\\"prompt\\\":\\\"}\" "
                             "\"${line#*\\\"response\\\":\\\"}\")}\"; done";
  }
  // Of answers that begin with 1 or 2 nobody can say anything.
  static void know_some(RlOptions& options) {
    grade_by(options,
             "case $2 in [12]*) echo '\"reward\":null,\"failure\":\"no idea\"';; [3-6]*) echo '\"reward\":1';; *) echo "
             "'\"reward\":0.25';; esac");
  }

  void expect_same_on(const std::vector<int>& sizes, const std::function<RlOptions(const std::string&)>& options) {
    run_rl(options("alone"), control_);
    for (const int size : sizes) {
      const std::string save = fmt::format("ranks{}", size);
      run_well_on(size, options(save), run_rl);
      expect_same(save, "alone", *options(save).num_rollout);
      EXPECT_EQ(samples(save), samples("alone")) << size;
    }
  }
  double sum(const std::string& save, const std::string& metric) const {
    double total = 0;
    for (const Json& line : metrics(save)) total += line.value(metric, 0.0);
    return total;
  }
};

TEST_F(RanksWithRewards, ASampleThatNobodyCanGradeIsDroppedByAll) {
  expect_same_on({1, 2, 4}, [&](const std::string& save) {
    RlOptions options = two_rollouts(save);
    know_some(options);
    return options;
  });
  EXPECT_GT(sum("alone", "reward_unknown"), 0);
}

TEST_F(RanksWithRewards, AGroupThatNobodyCanGradeIsReplacedByAll) {
  expect_same_on({1, 2, 4}, [&](const std::string& save) {
    RlOptions options = two_rollouts(save);
    know_some(options);
    options.on_reward_failure = rl::RewardFailure::drop_group;
    options.over_sampling = 7;
    options.n_samples = 2;
    options.training.global_batch_size = 4;
    options.max_filter_rounds = 30;
    return options;
  });
  EXPECT_GT(sum("alone", "dynamic_sampling/dropped_groups"), 0);
}

TEST_F(RanksWithRewards, AnUnknownRewardStopsAllWhereItShould) {
  RlOptions options = two_rollouts("ranks4");
  know_some(options);
  options.on_reward_failure = rl::RewardFailure::stop;
  for (const std::string& error : run_on(4, options, run_rl)) {
    EXPECT_NE(error.find(" 3: "), std::string::npos) << error;  // one's own, or that of the rank that was first
    EXPECT_NE(error.find("a sample's reward is unknown"), std::string::npos) << error;
  }
}

TEST_F(RanksWithRewards, GroupsWithoutSpreadAreLeftOutByAll) {
  expect_same_on({1, 2, 4}, [&](const std::string& save) {
    RlOptions options = two_rollouts(save);
    options.need_spread = true;
    options.over_sampling = 7;
    options.max_filter_rounds = 30;
    return options;
  });
  EXPECT_GT(sum("alone", "dynamic_sampling/dropped_groups"), 0);
}

// One submission holds all samples of a prompt, and its first response decides what they get.
TEST_F(RanksWithRewards, GroupsAreGradedTogether) {
  expect_same_on({1, 2, 4}, [&](const std::string& save) {
    RlOptions options = two_rollouts(save);
    grade_by(options, "case $2 in [1-4]*) echo '\"rewards\":[0,1,0.5,1]';; *) echo '\"rewards\":[1,0,null,0]';; esac");
    options.reward.groups = true;
    return options;
  });
  EXPECT_GT(sum("alone", "reward_unknown"), 0);
}

TEST_F(RanksWithRewards, TheMajorityOfAnswersIsOne) {
  expect_same_on({1, 2, 4}, [&](const std::string& save) {
    RlOptions options = two_rollouts(save);
    options.eval_sets = {{"held_out", kArith + "/test.jsonl@[0:5]"}};
    options.eval_input_key = "prompt";
    options.eval_label_key = "label";
    options.eval_sampling = options.sampling;
    options.eval_samples = 3;
    options.eval_interval = 1;
    return options;
  });
  const std::string log = fs::read_file(dir_.path() / "ranks4" / "metrics.jsonl");
  EXPECT_NE(log.find("maj@3"), std::string::npos) << log;
}

// The program never answers for the file's first prompt; of each of its samples one rank finds out that time is up.
TEST_F(RanksWithRewards, ATimeOutOfOneRankIsAVerdictForAll) {
  const std::string row = fs::read_file(kArith + "/train.jsonl");
  const std::string prompt = Json::parse(row.substr(0, row.find('\n')))["prompt"];
  expect_same_on({4}, [&](const std::string& save) {
    RlOptions options = two_rollouts(save);
    options.num_rollout = 1;
    options.n_samples = 2;
    options.on_reward_failure = rl::RewardFailure::drop_group;
    options.reward.timeout = std::chrono::seconds(2);
    grade_by(options,
             "case $1 in '" + prompt +
                 "'*) sleep 60;; esac; case $2 in [1-4]*) echo '\"reward\":1';; *) echo '\"reward\":0';; esac");
    return options;
  });
  EXPECT_EQ(sum("ranks4", "reward_unknown"), 2) << "both samples of the prompt, each once";
  EXPECT_EQ(sum("ranks4", "dynamic_sampling/dropped_groups"), 1);
}

}  // namespace
}  // namespace lockstep::recipes
