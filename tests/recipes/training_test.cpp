// The loops end to end: two runs are one, what they log, what they refuse.
#include <algorithm>
#include <cmath>

#include "commands/commands.h"
#include "recipes/adapter.h"
#include "recipes/steps.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

TEST_F(Training, TwoSftRunsGiveTheSameBytesWhateverTheMachine) {
  run_sft(sft("a"), control_);
  SftOptions other = sft("b");
  other.base.stream.threads = 1;
  other.training.max_tokens = 1000;
  other.training.recompute = model::Recompute::full;
  run_sft(other, control_);
  EXPECT_EQ(adapter_bytes("a", 6), adapter_bytes("b", 6));
  const auto lines = metrics("a");
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_LT(lines.back()["loss"].get<double>(), lines.front()["loss"].get<double>());
  const std::string iteration = checkpoint::iteration_directory_name(4);
  EXPECT_EQ(Json::parse(fs::read_file(dir_.path() / "a" / iteration / "vime_lora_metadata.json"))["version"], 4);
  EXPECT_EQ(lines[0]["tokens"].get<int64_t>() + lines[1]["tokens"].get<int64_t>() + lines[2]["tokens"].get<int64_t>(),
            95);  // every row once an epoch: sum of (6 + i) - 1
}

TEST_F(Training, MaxRlSaysOnceThatMeansAreNegative) {
  RlOptions options = rl("negative");
  options.num_rollout = 2;
  options.advantage.estimator = rl::Estimator::max_rl;
  options.reward.choices = {{.kind = rl::RewardKind::command}};
  options.reward.command =
      "python3 -c 'import json, sys\nfor line in sys.stdin:\n  asked = json.loads(line)\n  print(json.dumps({\"id\": "
      "asked[\"id\"], \"reward\": -1 - asked[\"index\"]}), flush=True)'";
  run_rl(options, control_);
  const std::string said = out_.str() + info_.str(), wanted = "the mean reward of 4 of 4 groups is negative";
  ASSERT_NE(said.find(wanted), std::string::npos) << said;
  EXPECT_EQ(said.find(wanted), said.rfind(wanted)) << said;
}

TEST_F(Training, GrpoIsExactAndReproducible) {
  run_rl(rl("a"), control_);
  RlOptions other = rl("b");
  other.base.stream.threads = 1;
  other.max_sequences = 3;
  run_rl(other, control_);
  EXPECT_EQ(adapter_bytes("a", 4), adapter_bytes("b", 4));
  const auto lines = metrics("a");
  ASSERT_EQ(lines.size(), 4u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1);
    EXPECT_EQ(lines[i]["logprob_diff_max"].get<double>(), 0.0);
    EXPECT_EQ(lines[i]["version"].get<size_t>(), i);
    EXPECT_TRUE(lines[i]["kl"].is_null());
    for (const char* key :
         {"reward", "entropy", "response_len", "rollout_ms", "reward_ms", "train_ms", "publish_ms", "tokens_per_s"})
      EXPECT_TRUE(lines[i][key].is_number()) << key;
  }
}

// The trainer drops out what the sampler does not: the two are compared by a pass without dropout, or not at all.
TEST_F(Training, GrpoWithDropoutComparesLogprobsWithoutIt) {
  RlOptions options = rl("unmeasured");
  options.adapter.config.dropout = 0.2;
  run_rl(options, control_);
  EXPECT_NE(info_.str().find("diff not measured"), std::string::npos);
  for (const Json& line : metrics("unmeasured")) {
    EXPECT_TRUE(line["logprob_diff"].is_null());
    EXPECT_TRUE(line["logprob_diff_max"].is_null());
    EXPECT_GT(line["grad_norm"].get<double>(), 0);
  }
  options.save.save = rl("measured").save.save;
  options.checks.equal_logprobs = true;
  run_rl(options, control_);
  for (const Json& line : metrics("measured")) EXPECT_EQ(line["logprob_diff_max"].get<double>(), 0.0);
  EXPECT_EQ(adapter_bytes("measured", 4), adapter_bytes("unmeasured", 4));
  run_rl(rl("without"), control_);
  EXPECT_NE(adapter_bytes("without", 4), adapter_bytes("measured", 4));
}

TEST_F(Training, FlagsThatContradictTheAdapterToStartFromAreAnError) {
  SftOptions first = sft("first");
  first.num_epoch = 1;
  run_sft(first, control_);
  SftOptions second = sft("second");
  second.adapter.adapter_path = first.save.save + "/iter_0000003/lora_adapter";
  second.adapter.config.rank = 8;
  EXPECT_THROW(run_sft(second, control_), ConfigError);
  second.adapter.config = {};
  run_sft(second, control_);
}

TEST_F(Training, AnAdapterToStartFromSuppliesWhatIsNotAskedFor) {
  SftOptions first = sft("first");
  first.num_epoch = 1;
  first.adapter.config.use_rslora = true;
  first.adapter.config.target_modules = {"q_proj", "o_proj"};
  run_sft(first, control_);
  const std::string start = first.save.save + "/iter_0000003/lora_adapter";
  const auto run = [&](const std::string& save, auto change) {
    SftOptions next = sft(save);
    next.num_epoch = 1;
    next.adapter = {.config = {}, .adapter_path = start};
    change(next.adapter);
    run_sft(next, control_);
  };
  run("nothing", [](AdapterOptions&) {});
  run("same", [](AdapterOptions& a) {
    a = {.config = {.rank = 4, .alpha = 8, .use_rslora = true, .target_modules = {"q_proj", "o_proj"}},
         .adapter_path = a.adapter_path,
         .asked_alpha = true,
         .asked_rslora = true,
         .asked_type = true};
  });
  EXPECT_EQ(adapter_bytes("nothing", 3), adapter_bytes("same", 3));
  const Json config = read_json((dir_ / "nothing/iter_0000003/lora_adapter/adapter_config.json").string());
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 8);
  EXPECT_EQ(config["use_rslora"], true);
  // One thing asked for is compared, whether or not the others are.
  const auto rejects = [&](const char* flag, auto change) {
    testing::expect_error<ConfigError>([&] { run("other", change); }, {"has another", flag});
  };
  rejects("LoraConfig::rank", [](AdapterOptions& a) { a.config.rank = 8; });
  rejects("LoraConfig::alpha", [](AdapterOptions& a) {
    a.config.alpha = 16;
    a.asked_alpha = true;
  });
  rejects("LoraConfig::use_rslora", [](AdapterOptions& a) { a.asked_rslora = true; });
  rejects("LoraConfig::type", [](AdapterOptions& a) {
    a.config.type = lora::LoraType::canonical;
    a.asked_type = true;
  });
  rejects("LoraConfig::target_modules", [](AdapterOptions& a) { a.config.target_modules = {"q_proj"}; });
}

TEST_F(Training, RolloutsOfSupervisedRunsRunOnOverTheEndOfAnEpoch) {
  // 10 rows, 3 rollouts of 4 rows and 2 steps: 12 rows, where epochs would end after 10.
  SftOptions options = sft("rollouts");
  options.rollout_batch_size = 4;
  options.training.global_batch_size = 2;
  options.num_steps = 6;
  run_sft(options, control_);
  const auto lines = metrics("rollouts");
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_DOUBLE_EQ(lines.back()["epoch"].get<double>(), 1.2);
  options.num_steps.reset();
  EXPECT_EQ(sft_steps(options, 10), 2 * 2 * 2);  // 2 epochs of 2 whole rollouts of 2 steps
  EXPECT_THROW(sft_steps(options, 3), ConfigError);
  // It goes on as it began, or not at all.
  options.num_steps = 8;
  options.save.load = options.save.save;
  options.rollout_batch_size = 0;
  testing::expect_error<ConfigError>([&] { run_sft(options, control_); }, {"--global-batch-size"});
  options.rollout_batch_size = 4;
  testing::expect_error<ConfigError>([&] { run_sft(options, control_); }, {"--lr-decay-iters 8", "--lr-decay-iters 6"});
  options.save.overrides = {"lr-decay-iters"};
  run_sft(options, control_);
}

TEST_F(Training, AContextBoundsPromptsAndAnswers) {
  std::string rows;
  for (const char* prompt : {"1+1=", "10+20=", "100+200=", "1000+2000="})
    rows += Json{{"prompt", prompt}, {"label", "2"}}.dump() + "\n";
  RlOptions options = rl("context");
  options.prompt_data = dir_.write("prompts.jsonl", rows).string();
  options.num_rollout = 1;
  options.rollout_batch_size = 2;
  options.sampling.max_context =
      7;  // a token for each character: room for 3 and 1 new ones, and for two of the prompts
  options.sampling.min_tokens = 1;
  options.training.global_batch_size = 4;
  run_rl(options, control_);
  EXPECT_LE(metrics("context")[0]["response_len"].get<double>(), 2);
  EXPECT_NE(info_.str().find("2 prompts from " + options.prompt_data + " (2 too long, dropped)"), std::string::npos)
      << info_.str();
}

TEST_F(Training, PromptsThatDoNotFillARolloutAreAnError) {
  RlOptions options = rl("run");
  options.prompt_data += "@[0:3]";
  options.num_rollout.reset();
  options.num_epoch = 1;
  EXPECT_THROW(run_rl(options, control_), ConfigError);
}

TEST_F(Training, APromptThatComesTwiceInARolloutGetsOtherSamples) {
  RlOptions options = rl("run");
  options.prompt_data += "@[0:1]";
  options.num_rollout = 1;
  options.rollout_batch_size = 8;
  options.n_samples = 1;
  run_rl(options, control_);
  const double length = metrics("run")[0]["response_len"].get<double>();
  EXPECT_NE(length, std::floor(length));  // eight equal samples would have a whole number as their mean
}

TEST_F(Training, PromptsLongerThanTheContextAreDroppedWhateverTheLimitSays) {
  RlOptions options = rl("run");
  fs::write_file_atomic(dir_.path() / "long.jsonl", Json{{"prompt", std::string(4000, '1')}, {"label", "1"}}.dump() +
                                                        "\n" + Json{{"prompt", "1+1="}, {"label", "2"}}.dump() + "\n");
  options.prompt_data = (dir_.path() / "long.jsonl").string();
  options.max_prompt_len = 100000;
  options.num_rollout = 1;
  run_rl(options, control_);
  EXPECT_NE(info_.str().find("1 too long"), std::string::npos);
}

TEST_F(Training, KlIsLoggedWhenAskedForAndSmallAtFirst) {
  RlOptions options = rl("kl");
  options.use_kl_loss = true;
  options.loss.kl_coef = 0.1f;
  options.num_rollout = 2;
  run_rl(options, control_);
  const auto lines = metrics("kl");
  EXPECT_EQ(lines[0]["kl"].get<double>(), 0.0);  // B is 0 at first: the policy is the reference
  EXPECT_GT(lines[1]["kl"].get<double>(), 0.0);
  EXPECT_GT(lines[1]["kl_loss"].get<double>(), 0.0);
  for (const Json& line : lines)
    EXPECT_NEAR(line["loss"].get<double>(),
                line["pg_loss"].get<double>() + static_cast<double>(0.1f) * line["kl_loss"].get<double>(), 1e-9);
}

TEST_F(Training, EvaluationsAreLines) {
  RlOptions options = rl("eval");
  options.eval_sets = {{"held_out", kArith + "/test.jsonl@[0:20]"}};
  options.eval_interval = 2;
  options.eval_sampling.temperature = 0;
  options.eval_sampling.max_tokens = 12;
  run_rl(options, control_);
  std::vector<int64_t> steps;
  for (const Json& line : metrics("eval"))
    if (line.contains("eval")) {
      EXPECT_EQ(line["eval"], "held_out");
      EXPECT_GE(line["accuracy"].get<double>(), 0.0);
      steps.push_back(line["step"].get<int64_t>());
    }
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 2, 4}));
}

TEST_F(Training, AnAdapterOfAnotherBaseIsRefused) {
  SftOptions options = sft("save");
  options.num_epoch = 1;
  run_sft(options, control_);
  Stream stream({.threads = 1});
  const Base other = load_base({.hf_checkpoint = kArith}, stream, control_);
  const std::string adapter = options.save.save + "/iter_0000003/lora_adapter";
  try {
    load_adapter(adapter, other, control_);
    FAIL() << "loaded";
  } catch (const FormatError& refused) {
    EXPECT_NE(std::string(refused.what()).find("another base"), std::string::npos);
  }
}

TEST_F(Training, AWarmStartBeginsAtTheGivenAdapter) {
  SftOptions first = sft("first");
  first.num_epoch = 1;
  run_sft(first, control_);
  SftOptions second = sft("second");
  second.adapter.adapter_path = first.save.save + "/iter_0000003/lora_adapter";
  second.optimizer.schedule.lr = 0;
  second.optimizer.weight_decay = 0;
  second.num_epoch = 1;
  run_sft(second, control_);
  EXPECT_EQ(adapter_bytes("first", 3), adapter_bytes("second", 3));
}

TEST_F(Training, BadRowsAreLeftOutAndNamedWhereThatIsAllowed) {
  SftOptions options = sft("bad");
  options.prompt_data = (dir_.path() / "bad.jsonl").string();
  fs::write_file_atomic(options.prompt_data,
                        R"({"tokens": [1, 2], "loss_mask": [0, 1]}
{"tokens": [1, 304], "loss_mask": [0, 1]}
{"tokens": [1, 2], "loss_mask": [0, 1]
{"tokens": [3, 4], "loss_mask": [0, 1]}
)");
  options.optimizer.schedule.warmup_steps = 0;
  options.rows.max_bad_rows = 1;
  testing::expect_error<DataError>([&] { run_sft(options, control_); }, {"bad.jsonl line 3", "after 1 bad row"});
  options.rows.max_bad_rows = 2;
  options.num_epoch = 1;
  run_sft(options, control_);
  for (const char* part :
       {"data    2 rows from ", "note    2 bad rows left out (RowOptions::max_bad_rows 2):\n",
        "bad.jsonl line 2: not a token id: 304; wanted an integer from 0 to 303\n", "bad.jsonl line 3: invalid JSON: "})
    EXPECT_NE(info_.str().find(part), std::string::npos) << part << "\nis not in\n" << info_.str();
}

TEST_F(Training, BadRowsNameTheirLineAndNothingIsWritten) {
  const auto fails = [&](const std::string& row, const std::string& word) {
    SftOptions options = sft("bad");
    options.prompt_data = (dir_.path() / "bad.jsonl").string();
    fs::write_file_atomic(options.prompt_data, "{\"tokens\": [1, 2], \"loss_mask\": [0, 1]}\n" + row + "\n");
    try {
      run_sft(options, control_);
      ADD_FAILURE() << row << " was accepted";
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("bad.jsonl line 2"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
    EXPECT_FALSE(checkpoint::latest_iteration(options.save.save).has_value());
  };
  fails(R"({"tokens": [1, 2], "loss_mask": [1, 1]})", "first token");
  fails(R"({"tokens": [1, 2], "loss_mask": [0, 0]})", "target");
  fails(R"({"tokens": [1, 2, 3], "loss_mask": [0, 1]})", "length");
  fails(R"({"tokens": [1, 304], "loss_mask": [0, 1]})", "304");
  fails(R"({"tokens": [1, -1], "loss_mask": [0, 1]})", "-1");
  fails(R"({"tokens": "1 2", "loss_mask": [0, 1]})", "tokens");
  fails(R"({"tokens": [1, 2], "loss_mask": [0, 0.5]})", "loss_mask");
}

TEST_F(Training, AnUnwritableSaveDirectoryStopsBeforeAnyWork) {
  SftOptions options = sft("x");
  fs::write_file_atomic(dir_.path() / "file", "not a directory");
  options.save.save = (dir_.path() / "file" / "run").string();
  EXPECT_THROW(run_sft(options, control_), ResourceError);
  EXPECT_EQ(info_.str(), "");
}

TEST_F(Training, ScoreKeepsTheRowAndPrintsPerplexity) {
  const std::string input = (dir_.path() / "rows.jsonl").string(), output = (dir_.path() / "scored.jsonl").string();
  fs::write_file_atomic(input, "{\"tokens\": [1, 2, 3], \"id\": \"a\"}\n{\"tokens\": [5]}\n");
  commands::run_score({.base = {.hf_checkpoint = kTiny, .device = "cpu"}, .input = input, .output = output}, control_);
  std::istringstream text(fs::read_file(output));
  std::string line;
  std::getline(text, line);
  const Json first = Json::parse(line);
  EXPECT_EQ(first["id"], "a");
  ASSERT_EQ(first["logprobs"].size(), 3u);
  EXPECT_TRUE(first["logprobs"][0].is_null());
  const double mean = (first["logprobs"][1].get<double>() + first["logprobs"][2].get<double>()) / 2;
  std::getline(text, line);
  EXPECT_EQ(Json::parse(line)["logprobs"], Json::array({nullptr}));
  const std::string printed = out_.str();
  ASSERT_EQ(printed.rfind("perplexity ", 0), 0u) << printed;
  EXPECT_NEAR(std::stod(printed.substr(11)), std::exp(-mean), 1e-4 * std::exp(-mean));
}

TEST_F(Training, GenerateIsReproducibleAndPrintsOnlyCompletions) {
  commands::GenerateOptions options{.base = {.hf_checkpoint = kArith, .device = "cpu"},
                                    .prompt = "12+34=",
                                    .sampling = {.temperature = 1.0f, .max_tokens = 16}};
  commands::run_generate(options, control_);
  const std::string first = out_.str();
  out_.str("");
  commands::run_generate(options, control_);
  EXPECT_EQ(out_.str(), first);
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 1);
  EXPECT_EQ(first.find("12+34="), std::string::npos);
}

}  // namespace
}  // namespace lockstep::recipes
