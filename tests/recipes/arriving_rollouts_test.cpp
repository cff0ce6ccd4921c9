// Rollouts made of what arrives, and rollouts whose long samples are drawn over several of them.
#include "recipes/arriving_rollouts.h"

#include <cstdlib>
#include <set>
#include <utility>

#include "recipes/pending_samples.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

TEST(ArrivalCapacity, IsTheLeastOfItsBounds) {
  AsyncOptions options{.on = true, .buffer_factor = 2};
  ArrivalCounts counts{.batch = 4, .concurrent = 6};
  EXPECT_EQ(arrival_capacity(options, counts), 6);
  counts.running = 4;
  EXPECT_EQ(arrival_capacity(options, counts), 2);
  counts = {.batch = 4, .running = 1, .ready = 6, .concurrent = 6};
  EXPECT_EQ(arrival_capacity(options, counts), 1) << "two rollouts wait or are under way";
  counts.ready = 9;
  EXPECT_EQ(arrival_capacity(options, counts), 0);
  options = {.on = true, .buffer_factor = 100, .max_staleness = 0};
  counts = {.batch = 4, .trained = 3, .concurrent = 100};
  EXPECT_EQ(arrival_capacity(options, counts), 4) << "(0 + 3 + 1) 4 - 3 4: the rollout that comes next";
  counts.ready = 3;
  EXPECT_EQ(arrival_capacity(options, counts), 1);
  options.max_staleness = 2;
  EXPECT_EQ(arrival_capacity(options, counts), 9);
  counts.taken = 4;
  EXPECT_EQ(arrival_capacity(options, counts), 5) << "what is trained on now is accepted, too";
  options = {.on = true, .buffer_factor = 0.1};
  EXPECT_EQ(arrival_capacity(options, {.batch = 4, .concurrent = 9}), 4) << "a rollout has to fit";
}

TEST(PendingSamples, ReadBackBitForBit) {
  rl::GradedSamples samples, back;
  samples.add({.rollout = 1, .row = 2, .sample = 3},
              {.sample = {.tokens = {5, 6}, .logprobs = {-0.1f, -1e-30f}, .versions = {4, 5}},
               .score = {.value = 1.0f / 3, .parts = {{.name = "b", .value = 0.7f}, {.name = "a", .value = {}}}}});
  samples.add({.rollout = 1, .row = 2, .sample = 4},
              {.sample = {.tokens = {5}, .logprobs = {-2}, .versions = {4}, .finish = rollout::FinishReason::stop},
               .score = rl::Score::unknown("lost")});
  const Json json = Json::parse(json_text(pending_samples_json(samples.all())));
  restore_pending_samples(json, "file", back);
  EXPECT_EQ(pending_samples_json(back.all()), pending_samples_json(samples.all()));
  for (const auto& [key, sample] : back.all()) EXPECT_EQ(sample.sample.index, key.sample);
  const auto all = back.all();
  const rl::GradedSample& first = all.begin()->second;
  EXPECT_EQ(first.sample.logprobs, (std::vector<float>{-0.1f, -1e-30f}));
  EXPECT_EQ(first.score.value, 1.0f / 3);
  EXPECT_EQ(first.score.parts[0].name, "b");
  EXPECT_EQ(all.rbegin()->second.score.failure, "lost");
  for (const char* key : {"rollout", "row", "sample", "tokens", "logprobs", "versions"}) {
    Json lacking = json;
    lacking[0].erase(key);
    EXPECT_THROW(restore_pending_samples(lacking, "file", back), FormatError) << key;
  }
}

class Arrival : public Training {
 protected:
  RlOptions arriving(const std::string& save) {
    RlOptions options = rl(save);
    options.num_rollout = 6;
    options.async = {.on = true, .max_staleness = 2};
    options.correction.rules = {{.action = rl::CorrectionAction::mask, .low = 0, .high = 5}};
    options.checks.equal_logprobs = true;  // every log-prob is that of the version that drew the token
    return options;
  }
  RlOptions partial(const std::string& save) {
    RlOptions options = rl(save);
    options.num_rollout = 6;
    options.over_sampling = 6;
    options.partial = {.on = true, .tokens = 3};
    options.checks.equal_logprobs = true;
    return options;
  }
  std::vector<Json> dumped(const std::string& name, int64_t rollout) const {
    std::vector<Json> lines;
    std::istringstream text(fs::read_file(dir_.path() / name / (std::to_string(rollout) + ".jsonl")));
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  std::string dump(const std::string& name) const { return (dir_.path() / name / "{rollout_id}.jsonl").string(); }
};

TEST_F(Arrival, TrainsOnWhatIsThereWithinItsBound) {
  run_rl(arriving("run"), control_);
  const std::vector<Json> lines = metrics("run");
  ASSERT_EQ(lines.size(), 6u);
  for (const Json& line : lines) {
    EXPECT_LE(line.at("staleness_max").get<double>(), 2);
    EXPECT_EQ(line.at("logprob_diff_max"), 0.0);
    EXPECT_TRUE(line.contains("tis")) << "the decoupled loss";
    EXPECT_TRUE(line.contains("async/ready_groups"));
  }
}

// No group passes: it ends with the counts, as a run in turn does, and does not sample without end.
TEST_F(Arrival, ItEndsWhereTooFewGroupsPassTheGates) {
  int asked = 0;
  control_.interrupted = [&] { return ++asked > 300; };
  RlOptions equal = arriving("equal");
  equal.reward.choices = {{.rule = *rl::rule_of("zero")}};
  equal.need_spread = true;
  equal.max_filter_rounds = 3;
  testing::expect_error<DataError>([&] { run_rl(equal, control_); }, {"rewards that differ", "in 3 rounds"});
  asked = 0;
  RlOptions unknown = arriving("unknown");
  unknown.reward.choices = {{.kind = rl::RewardKind::command}};
  unknown.reward.command = "false";
  unknown.on_reward_failure = rl::RewardFailure::drop_group;
  unknown.max_filter_rounds = 2;
  testing::expect_error<DataError>([&] { run_rl(unknown, control_); }, {"rewards that are all known", "in 2 rounds"});
}

TEST_F(Arrival, WithoutStalenessItIsOnPolicy) {
  RlOptions options = arriving("run");
  options.async.max_staleness = 0;
  run_rl(options, control_);
  for (const Json& line : metrics("run")) EXPECT_EQ(line.at("staleness_max"), 0.0);
}

// Sampling is always ahead here, and a sample takes longer than a step of training, so samples are under way when a
// version is published. (With shorter ones and a checkpoint at each step a slow disk left none under way.)
TEST_F(Arrival, SamplesUnderWayGoOnWithNewVersions) {
  RlOptions options = arriving("run");
  options.num_rollout = 12;
  options.rollout_batch_size = 2;  // published often
  options.save.save_interval = 12;
  options.async.max_staleness = 8;
  options.async.buffer_factor = 8;
  options.async.max_concurrent_samples = 8;
  options.adapter.config.target_modules = {"q_proj"};
  options.sampling.min_tokens = options.sampling.max_tokens = 200;
  options.checks.equal_logprobs = true;
  options.debug.save_rollouts = dump("rollouts");
  run_rl(options, control_);
  int64_t followed = 0;
  for (const Json& line : metrics("run")) followed += line.at("async/followed_samples").get<int64_t>();
  EXPECT_GT(followed, 2) << "samples that two versions or more drew";
  // A dumped rollout has its versions token by token, and trains to the same bytes.
  options.save.save = (dir_.path() / "again").string();
  options.debug = {.train_only = true, .load_rollouts = dump("rollouts")};
  options.checks.equal_logprobs = false;
  run_rl(options, control_);
  EXPECT_EQ(adapter_bytes("again", 12), adapter_bytes("run", 12));
}

TEST_F(Arrival, AResumedRunGoesOnWithWhatWasThere) {
  RlOptions options = arriving("run");
  options.num_rollout = 3;
  run_rl(options, control_);
  const checkpoint::LoadedCheckpoint saved(options.save.save, 3);
  const Json& arrivals = saved.state().parts.at("arrivals").json;
  EXPECT_GT(arrivals.at("begun").size() + arrivals.at("ready").size(), 0u);
  options.num_rollout = 6;
  options.save.load = options.save.save;
  run_rl(options, control_);
  EXPECT_EQ(metrics("run").size(), 6u);
  const checkpoint::LoadedCheckpoint later(options.save.save, 6);
  const Json& then = later.state().parts.at("arrivals").json;
  EXPECT_GE(then.at("next_number"), arrivals.at("next_number").get<int64_t>() + 12 - 8) << "numbers go on";
  EXPECT_GT(then.at("position"), arrivals.at("position"));
}

TEST_F(Arrival, EvaluationsHaveTheSamplerForThemselves) {
  RlOptions options = arriving("run");
  options.eval_sets = {{.name = "held-out", .path = kArith + "/test.jsonl@[0:8]"}};
  options.eval_interval = 2;
  options.eval_sampling.max_tokens = 8;
  options.eval_sampling.temperature = 0;
  run_rl(options, control_);
  int evaluations = 0;
  for (const Json& line : metrics("run")) evaluations += line.contains("eval") ? 1 : 0;
  EXPECT_EQ(evaluations, 4);
}

TEST_F(Arrival, AnInterruptEndsIt) {
  RlOptions options = arriving("run");
  int asked = 0;
  options.num_rollout = 1000;
  control_.interrupted = [&] { return ++asked > 25; };
  EXPECT_THROW(run_rl(options, control_), Cancelled);
  // What arrives first after the interrupt is another matter.
  options = arriving("saved");
  options.num_rollout = 1000;
  options.save.save_interval = 1;
  options.save.total_limit = 2;
  control_.interrupted = [saved = dir_ / "saved"] { return checkpoint::latest_iteration(saved).value_or(0) > 1; };
  testing::expect_error<Cancelled>([&] { run_rl(options, control_); },
                                   {"is saved", "to go on from there (its samples will be others)"});
}

// A sample that was cut and went on is the sample that was not: a token depends on those before it alone.
TEST_F(Arrival, CutSamplesAreTheUncutOnes) {
  RlOptions options = partial("cut");
  options.over_sampling = 0;
  options.optimizer.schedule.lr = 0;  // every version is the first one
  options.num_rollout = 2;
  options.debug.save_rollouts = dump("cut_dump");
  run_rl(options, control_);
  options = rl("whole");
  options.optimizer.schedule.lr = 0;
  options.num_rollout = 2;
  options.debug.save_rollouts = dump("whole_dump");
  run_rl(options, control_);
  for (const int64_t rollout : {0, 1}) {
    const std::vector<Json> cut = dumped("cut_dump", rollout), whole = dumped("whole_dump", rollout);
    ASSERT_EQ(cut.size(), whole.size());
    for (size_t i = 0; i < cut.size(); ++i)
      for (const char* key : {"prompt", "tokens", "sampled_logprobs", "reward", "truncated", "group", "index"})
        EXPECT_EQ(cut[i].at(key), whole[i].at(key)) << rollout << " " << i << " " << key;
  }
}

TEST_F(Arrival, LongSamplesGoOnInTheNextRollout) {
  RlOptions options = partial("run");
  options.debug.save_rollouts = dump("rollouts");
  run_rl(options, control_);
  double older = 0;
  for (const Json& line : metrics("run")) {
    older += line.at("partial/older_tokens").get<double>();
    EXPECT_EQ(line.at("logprob_diff_max"), 0.0);
  }
  EXPECT_GT(older, 0);
  bool several = false;
  for (int64_t rollout = 0; rollout < 6; ++rollout)
    for (const Json& sample : dumped("rollouts", rollout)) several |= sample.contains("versions");
  EXPECT_TRUE(several);
}

TEST_F(Arrival, TokensOfEarlierRolloutsCanBeMasked) {
  RlOptions options = partial("run");
  options.partial.mask_old = true;
  options.debug.save_rollouts = dump("rollouts");
  run_rl(options, control_);
  for (int64_t rollout = 0; rollout < 6; ++rollout)
    for (const Json& sample : dumped("rollouts", rollout)) {
      const size_t size = sample.at("tokens").size();
      for (size_t t = 0; t < size; ++t) {
        const int64_t version =
            sample.contains("versions") ? sample["versions"][t].get<int64_t>() : sample.at("version").get<int64_t>();
        const double mask = sample.contains("loss_mask") ? sample["loss_mask"][t].get<double>() : 1;
        EXPECT_EQ(mask, version == rollout ? 1 : 0);
      }
    }
}

TEST_F(Arrival, PartialRolloutsResumeBitForBit) {
  run_rl(partial("whole"), control_);
  for (const int64_t first : {1, 3}) {
    const std::string name = "part" + std::to_string(first);
    RlOptions options = partial(name);
    options.num_rollout = first;
    run_rl(options, control_);
    options.num_rollout = 6;
    options.save.load = options.save.save;
    run_rl(options, control_);
    EXPECT_EQ(adapter_bytes(name, 6), adapter_bytes("whole", 6)) << first;
    EXPECT_EQ(results(name), results("whole")) << first;
  }
  int questions = 0;
  control_.interrupted = [&] { return ++questions < 0; };
  run_rl(partial("counted"), control_);
  for (int at = questions / 5; at < questions; at += questions / 5) {
    const std::string name = "interrupted" + std::to_string(at);
    RlOptions options = partial(name);
    options.save.save_interval = 4;  // most are saved because of the interrupt
    int asked = 0;
    control_.interrupted = [&] { return ++asked > at; };
    EXPECT_THROW(run_rl(options, control_), Cancelled) << at;
    control_.interrupted = [] { return false; };
    options.save.load = options.save.save;
    run_rl(options, control_);
    EXPECT_EQ(adapter_bytes(name, 6), adapter_bytes("whole", 6)) << at;
    EXPECT_EQ(results(name), results("whole")) << at;
  }
}

// A checkpoint has the versions that drew what it keeps, and no others.
TEST_F(Arrival, CheckpointsHoldTheVersionsOfTheirSamples) {
  run_rl(partial("run"), control_);
  size_t older = 0;
  for (int64_t iteration = 1; iteration <= 6; ++iteration) {
    const checkpoint::LoadedCheckpoint saved((dir_.path() / "run").string(), iteration);
    std::set<int64_t> drew, kept;
    for (const Json& group : saved.state().parts.at("partial_rollouts").json.at("groups"))
      for (const Json& sample : group.at("samples"))
        for (const Json& version : sample.at("versions")) drew.insert(version.get<int64_t>());
    for (const std::string& name : saved.policy_names())
      if (name != lora::kActor) kept.insert(saved.policy(name).directory.metadata()->version);
    drew.erase(iteration);  // the actor
    EXPECT_EQ(kept, drew) << iteration;
    older += drew.size();
  }
  EXPECT_GT(older, 0u);
}

// One prompt for all groups, most of which are dropped: each is drawn anew.
TEST_F(Arrival, APromptWhoseGroupWasDroppedIsDrawnAnew) {
  RlOptions options = partial("run");
  options.prompt_data = kArith + "/train.jsonl@[0:1]";
  options.over_sampling = 0;
  options.rollout_batch_size = 1;
  options.training.global_batch_size = 4;
  options.need_spread = true;
  options.max_filter_rounds = 50;
  options.optimizer.schedule.lr = 0;
  run_rl(options, control_);
  int64_t dropped = 0;
  for (const Json& line : metrics("run")) dropped += line.at("dynamic_sampling/dropped_groups").get<int64_t>();
  EXPECT_GT(dropped, 0);
}

// What was drawn and graded of the rollout that is interrupted is kept, although its last iteration is saved.
TEST_F(Arrival, AnInterruptKeepsWhatWasGradedSinceTheLastCheckpoint) {
  for (const bool is_partial : {false, true}) {
    const auto options = [&](const std::string& save, int64_t rollouts) {
      RlOptions o = is_partial ? partial(save) : rl(save);
      o.num_rollout = rollouts;
      return o;
    };
    const std::string kind = is_partial ? "partial" : "by_rule";
    int questions = 0;
    control_.interrupted = [&] { return ++questions < 0; };
    run_rl(options(kind + "_one", 1), control_);
    const int first = std::exchange(questions, 0);
    run_rl(options(kind, 2), control_);
    size_t kept = 0;
    for (int at = first; at < questions; at += std::max(1, (questions - first) / 8)) {
      const std::string name = kind + std::to_string(at);
      RlOptions o = options(name, 2);
      int asked = 0;
      control_.interrupted = [&] { return ++asked > at; };
      EXPECT_THROW(run_rl(o, control_), Cancelled) << name;
      const checkpoint::LoadedCheckpoint saved(o.save.save, 1);
      const auto& parts = saved.state().parts;
      if (!is_partial && parts.contains("pending_samples"))
        kept += parts.at("pending_samples").json.at("samples").size();
      if (is_partial && parts.at("partial_rollouts").json.at("position") > saved.state().counters.at("data_position"))
        ++kept;
      control_.interrupted = [] { return false; };
      o.save.load = o.save.save;
      run_rl(o, control_);
      EXPECT_EQ(adapter_bytes(name, 2), adapter_bytes(kind, 2)) << name;
    }
    EXPECT_GT(kept, 0u) << kind;
  }
}

class SlowRewards : public Arrival {
 protected:
  // The answer's first character right or not, by a program in the shell's python3: `before` runs for each sample.
  void grade_by(RlOptions& options, const std::string& before) {
    options.reward.choices = {{.kind = rl::RewardKind::command}};
    options.reward.workers = 8;
    dir_.write("grade.py",
               "import json, os, sys, time\n"
               "for line in sys.stdin:\n"
               "    sample = json.loads(line)\n"
               "    reward = float(sample['response'][:1] == sample['label'][:1])\n"
               "    " +
                   before +
                   "\n"
                   "    print(json.dumps({'id': sample['id'], 'reward': reward}), flush=True)\n");
    options.reward.command = "python3 " + (dir_.path() / "grade.py").string();
  }
  void SetUp() override {
    if (std::system("python3 -c ''") != 0) GTEST_SKIP() << "no python3";
  }
};

// Groups that finish while others are waited for may be too old by then.
TEST_F(SlowRewards, AGroupThatWasGradedForLongIsTooOld) {
  RlOptions options = arriving("run");
  options.num_rollout = 10;
  options.rollout_batch_size = 2;
  options.async.max_staleness = 1;
  options.async.max_concurrent_samples = 16;
  grade_by(options, "time.sleep(0.5 if int(sample['label']) % 3 == 0 else 0.04)");
  run_rl(options, control_);
  for (const Json& line : metrics("run")) EXPECT_LE(line.at("staleness_max").get<double>(), 1) << line;
  EXPECT_GT(metrics("run").back().at("async/stale_groups").get<int64_t>(), 0);
}

TEST_F(SlowRewards, ALineSaysWhyARewardIsUnknown) {
  for (const std::string kind : {"partial", "arriving", "loaded"}) {
    RlOptions options = kind == "arriving" ? arriving(kind) : kind == "partial" ? partial(kind) : rl(kind);
    options.num_rollout = 2;
    options.correction = {};
    grade_by(options, "reward = None if sample['index'] == 2 else reward");
    if (kind == "arriving") options.debug.save_rollouts = dump("saved");
    if (kind == "loaded") options.debug = {.train_only = true, .load_rollouts = dump("saved")};
    out_.str("");
    info_.str("");
    run_rl(options, control_);
    const std::string said = out_.str() + info_.str();
    EXPECT_NE(said.find("4 of 16 rewards unknown; the first: "), std::string::npos) << kind << "\n" << said;
    EXPECT_NE(said.find(kind == "loaded" ? "sample 2: unknown when " : "sample 2: the reward is null"),
              std::string::npos)
        << kind << "\n"
        << said;
    for (const Json& line : metrics(kind)) EXPECT_EQ(line.at("reward_unknown"), 4) << kind;
  }
}

// A reward service that is gone after three rollouts stops the run, and the run goes on when it is back: the checkpoint
// knows nothing of the rewards that were not given.
TEST_F(SlowRewards, ARunThatAnUnknownRewardStoppedGoesOnWhenItIsMended) {
  const std::string broken = (dir_.path() / "broken").string();
  for (const std::string kind : {"by_rule", "ahead", "partial", "arriving"}) {
    const std::string from = kind == "arriving" ? "12" : "3";  // groups are numbered there
    const auto options = [&](const std::string& save) {
      RlOptions o = kind == "partial" ? partial(save) : kind == "arriving" ? arriving(save) : rl(save);
      if (kind == "ahead") o.staleness.max_staleness = 1;
      o.num_rollout = 5;
      o.checks.equal_logprobs = true;
      o.on_reward_failure = rl::RewardFailure::stop;
      grade_by(o,
               "reward = None if sample['rollout'] >= " + from + " and os.path.exists('" + broken + "') else reward");
      return o;
    };
    run_rl(options(kind + "_whole"), control_);
    RlOptions stopped = options(kind);
    dir_.write("broken", "");
    testing::expect_error<DataError>([&] { run_rl(stopped, control_); }, {"reward is unknown"});
    EXPECT_LT(metrics(kind).size(), 5u) << kind;
    std::filesystem::remove(broken);
    stopped.save.load = stopped.save.save;
    run_rl(stopped, control_);
    EXPECT_EQ(metrics(kind).size(), 5u) << kind;
    if (kind == "arriving") continue;  // timing decides there
    EXPECT_EQ(adapter_bytes(kind, 5), adapter_bytes(kind + "_whole", 5)) << kind;
  }
}

}  // namespace
}  // namespace lockstep::recipes
