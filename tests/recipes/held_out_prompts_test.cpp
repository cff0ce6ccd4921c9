// Held-out sets of a reinforcement-learning run, each with sampling and reward of its own.
#include "recipes/held_out_prompts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

using testing::expect_error;

class HeldOutSets : public Training {
 protected:
  RlOptions options(const std::string& save) {
    RlOptions o = rl(save);
    o.num_rollout = 2;
    o.eval_interval = 2;
    o.eval_sampling.max_tokens = 12;
    return o;
  }
  EvalSet set(const std::string& name, int64_t samples, float temperature) {
    EvalSet set{.name = name, .path = kArith + "/test.jsonl@[0:12]"};
    set.samples = samples;
    set.temperature = temperature;
    return set;
  }
  std::vector<Json> evaluations(const std::string& save) {
    std::vector<Json> lines;
    for (const Json& line : metrics(save))
      if (line.contains("eval")) lines.push_back(line);
    return lines;
  }
};

TEST_F(HeldOutSets, EachIsSampledAndGradedByItself) {
  RlOptions o = options("both");
  o.log_passrate = true;
  o.eval_sets = {set("greedy", 1, 0), set("sampled", 4, 1), set("lengths", 2, 1)};
  o.eval_sets[2].reward = {{.rule = *rl::rule_of("format")}};
  run_rl(o, control_);
  const auto lines = evaluations("both");
  ASSERT_EQ(lines.size(), 6u);
  const Json& greedy = lines[3];
  EXPECT_EQ(greedy["eval"], "greedy");
  EXPECT_FALSE(greedy.contains("avg@1"));
  EXPECT_EQ(greedy["pass@1"], greedy["accuracy"]);
  const Json& sampled = lines[4];
  EXPECT_EQ(sampled["avg@4"], sampled["accuracy"]);
  EXPECT_NEAR(sampled["pass@1"].get<double>(), sampled["accuracy"].get<double>(), 1e-12);
  EXPECT_GE(sampled["pass@4"].get<double>(), sampled["maj@4"].get<double>());
  EXPECT_GE(sampled["pass@2"].get<double>(), sampled["pass@1"].get<double>());
  EXPECT_GT(sampled["pass@4"].get<double>(), 0);
  EXPECT_EQ(lines[5]["accuracy"], 0.0);  // no response thinks
  EXPECT_FALSE(lines[5].contains("maj@2"));
  // A set says the same whatever other sets there are.
  RlOptions alone = options("alone");
  alone.log_passrate = true;
  alone.eval_sets = {set("sampled", 4, 1)};
  run_rl(alone, control_);
  const auto other = evaluations("alone");
  ASSERT_EQ(other.size(), 2u);
  EXPECT_EQ(other[0], lines[1]);
  EXPECT_EQ(other[1], sampled);
}

// So that an evaluation and rollouts in flight share the steps of the engine, and on a GPU its graphs.
TEST(EvalSampling, ItsLogProbsAreAtTheTemperatureOfTraining) {
  RlOptions o;
  o.sampling.temperature = 0.7f;
  o.eval_sampling.temperature = 1;
  EXPECT_EQ(eval_sampling(o, {}).logprob_temperature, 0.7f);
  EXPECT_EQ(eval_sampling(o, {}).temperature, 1);
  const rollout::SamplingParams greedy = eval_sampling(o, {.temperature = 0.0f});
  EXPECT_EQ(greedy.temperature, 0);
  EXPECT_EQ(greedy.logprob_temperature, 0.7f);
}

TEST_F(HeldOutSets, TheNamedSetSaysWhichCheckpointIsBest) {
  RlOptions o = options("best");
  o.num_rollout = 4;
  o.eval_interval = 1;
  o.save_best = true;
  o.eval_sets = {set("never", 1, 0), set("sums", 4, 1)};
  o.eval_sets[0].reward = {{.rule = *rl::rule_of("format")}};
  o.save_best_set = "sums";
  run_rl(o, control_);
  int64_t best = 0;
  double most = -1;
  for (const Json& line : evaluations("best"))
    if (line["eval"] == "sums" && line["step"] > 0 && line["accuracy"].get<double>() > most) {
      most = line["accuracy"].get<double>();
      best = line["step"].get<int64_t>();
    }
  EXPECT_EQ(fs::read_file(fs::Path(o.save.save) / "best_checkpointed_iteration.txt"), std::to_string(best));
  EXPECT_NE(info_.str().find(fmt::format("best    rollout {}", best)), std::string::npos) << info_.str();
}

// What was best on other prompts says nothing of these.
TEST_F(HeldOutSets, AResumedRunWithOtherPromptsBeginsItsBestAnew) {
  RlOptions o = options("first");
  o.eval_interval = 1;
  o.save_best = true;
  o.eval_sets = {set("sums", 1, 0)};
  run_rl(o, control_);
  o.num_rollout = 3;
  o.save.load = o.save.save;
  o.save.save = (dir_.path() / "second").string();
  o.eval_sets[0].path = kArith + "/test.jsonl@[40:43]";
  info_.str("");
  run_rl(o, control_);
  EXPECT_NE(info_.str().find("held-out set sums has other rows than the one of that name"), std::string::npos)
      << info_.str();
  const std::vector<Json> lines = evaluations("second");
  ASSERT_EQ(lines.size(), 2u);  // where it goes on, and at the end
  EXPECT_EQ(lines[0]["step"], 2);
  const int64_t best = lines[1]["accuracy"].get<double>() > lines[0]["accuracy"].get<double>() ? 3 : 2;
  EXPECT_EQ(checkpoint::best_iteration(o.save.save), best);
}

// Of the second evaluation one reward is known, and it is 1; of the others all are, and they are 0.
TEST_F(HeldOutSets, AnEvaluationWithUnknownRewardsIsNotTheBest) {
  RlOptions o = options("unknown");
  o.eval_interval = 1;
  o.eval_before_train = false;
  o.save_best = true;
  o.reward = {.choices = {{.kind = rl::RewardKind::command}}, .workers = 1};
  o.reward.command = "python3 " + dir_.write("grade.py",
                                             "import json, sys\n"
                                             "evals = 0\n"
                                             "for line in sys.stdin:\n"
                                             "  asked = json.loads(line)\n"
                                             "  reward = asked['index'] % 2\n"
                                             "  if asked['label'] == 'held':\n"
                                             "    reward = 0 if evals < 4 else 1 if evals == 4 else None\n"
                                             "    evals += 1\n"
                                             "  print(json.dumps({'id': asked['id'], 'reward': reward}), flush=True)\n")
                                      .string();
  std::string rows;
  for (const char* prompt : {"1+2=", "2+3=", "3+4=", "4+5="})
    rows += Json{{"prompt", prompt}, {"label", "held"}}.dump() + "\n";
  o.eval_sets = {EvalSet{.name = "held", .path = dir_.write("held.jsonl", rows).string()}};
  run_rl(o, control_);
  const auto lines = evaluations("unknown");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["reward_unknown"], 0);
  EXPECT_EQ(lines[1]["reward_unknown"], 3);
  EXPECT_EQ(lines[1]["accuracy"], 1.0);
  EXPECT_EQ(checkpoint::best_iteration(o.save.save), 1);
  EXPECT_NE((out_.str() + info_.str()).find("rollout 2 cannot be the best: 3 of its rewards on held are unknown"),
            std::string::npos)
      << out_.str();
}

TEST_F(HeldOutSets, ARewardsPartOfItsOwn) {
  RlOptions o = options("parts");
  o.reward = {.choices = {{.kind = rl::RewardKind::command}}};
  o.reward.command =
      "python3 -c 'import json, sys\nfor line in sys.stdin:\n  print(json.dumps({\"id\": "
      "json.loads(line)[\"id\"], \"reward\": {\"score\": 0.25, \"acc\": 0.75}}), flush=True)'";
  o.reward.reward_key = "score";
  o.eval_reward_key = "acc";
  o.eval_sets = {set("one", 1, 0)};
  run_rl(o, control_);
  EXPECT_EQ(evaluations("parts")[1]["accuracy"], 0.75);
  EXPECT_EQ(metrics("parts")[1]["reward"], 0.25);
}

TEST_F(HeldOutSets, LabelsNeedAKey) {
  RlOptions o = options("labels");
  o.label_key.clear();
  o.reward = {.choices = {{.rule = *rl::rule_of("random")}}};
  o.eval_sets = {set("one", 1, 0)};
  o.eval_sets[0].reward = {{.rule = *rl::rule_of("number")}};
  expect_error<ConfigError>([&] { run_rl(o, control_); }, {"graded by its labels", "one: number"});
  o.eval_sets[0].label_key = "label";
  run_rl(o, control_);
  EXPECT_EQ(evaluations("labels").size(), 2u);
}

// A share of the prompts that were short enough is another number than that of all.
TEST_F(HeldOutSets, PromptsThatAreTooLongAreCounted) {
  RlOptions o = options("dropped");
  o.eval_max_prompt_len = 8;
  o.eval_sets = {EvalSet{.name = "mixed",
                         .path = dir_.write("mixed.jsonl", R"({"prompt": "1+2=", "label": "3"})"
                                                           "\n"
                                                           R"({"prompt": "111111111+2=", "label": "111111113"})"
                                                           "\n")
                                     .string()}};
  run_rl(o, control_);
  EXPECT_NE(info_.str().find("eval    mixed: 1 prompts (1 too long, dropped)\n"), std::string::npos) << info_.str();
  ASSERT_EQ(evaluations("dropped").size(), 2u);
  for (const Json& line : evaluations("dropped")) EXPECT_EQ(line["dropped_prompts"], 1);
  o.eval_max_prompt_len = 2;
  expect_error<DataError>([&] { run_rl(o, control_); },
                          {"no usable prompt", "mixed.jsonl", "a larger RlOptions::eval_max_prompt_len"});
}

TEST_F(HeldOutSets, MetadataOfASetGoBeforeThoseOfItsRows) {
  RlOptions o = options("metadata");
  EvalSet own{.name = "own",
              .path = dir_.write("rows.jsonl", R"({"prompt": "1+2=", "label": "x", "metadata": {"rm_type": "number"}})"
                                               "\n")
                          .string()};
  own.metadata = {{"rm_type", "format"}};
  own.temperature = 0;
  o.eval_sets = {own};
  run_rl(o, control_);
  EXPECT_EQ(evaluations("metadata")[0]["accuracy"], 0.0);
}

}  // namespace
}  // namespace lockstep::recipes
