// generate, score and eval, and what a model says about sampling.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "checkpoint/train_state.h"
#include "commands/commands_fixture.h"

namespace lockstep::commands {
namespace {

using lockstep::testing::expect_error;

GenerateOptions generate_options(const std::string& model) {
  GenerateOptions options;
  options.base = {.hf_checkpoint = model, .stream = {.threads = 2}, .device = "cpu"};
  options.sampling.max_tokens = 12;
  return options;
}

TEST_F(Commands, GenerateTakesSamplingDefaultsFromTheModel) {
  const auto answer = [&](const Json& generation, uint64_t seed, std::optional<float> temperature = {}) {
    GenerateOptions options = generate_options(model_with(kArith, "generation_config.json", generation));
    options.prompt = "12+34=";
    options.sampling.seed = seed;
    options.sampling.temperature = temperature;
    run_generate(options, control_);
    return taken(out_);
  };
  const std::string greedy = answer({{"eos_token_id", 0}}, 1, 0.0f);
  std::vector<std::string> sampled;
  for (uint64_t seed = 1; seed <= 4; ++seed)
    sampled.push_back(answer({{"eos_token_id", 0}, {"temperature", 3.0}}, seed));
  EXPECT_NE(std::count(sampled.begin(), sampled.end(), sampled[0]), 4);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    EXPECT_EQ(answer({{"eos_token_id", 0}, {"temperature", 3.0}, {"do_sample", false}}, seed), greedy);
    EXPECT_EQ(answer({{"eos_token_id", 0}, {"temperature", 3.0}, {"top_k", 1}}, seed), greedy);
    EXPECT_EQ(answer({{"eos_token_id", 0}, {"do_sample", false}}, seed, 3.0f), sampled[seed - 1]);  // the user's word
  }
}

TEST_F(Commands, GenerateSaysWhichDefaultsItDoesNotUse) {
  GenerateOptions options = generate_options(model_with(kArith, "generation_config.json",
                                                        {{"eos_token_id", 0},
                                                         {"repetition_penalty", 1.1},
                                                         {"typical_p", 0.5},
                                                         {"max_new_tokens", 2048},
                                                         {"num_beams", 1},
                                                         {"top_p", 0.9},
                                                         {"length_penalty", 1.0},
                                                         {"bad_words_ids", nullptr},
                                                         {"suppress_tokens", Json::array()},
                                                         {"use_cache", true}}));
  options.prompt = "1+1=";
  run_generate(options, control_);
  const std::string info = info_.str();
  EXPECT_NE(info.find("note    generation_config.json: typical_p 0.5 is not used\n"), std::string::npos) << info;
  EXPECT_NE(info.find("note    generation_config.json: max_new_tokens 2048 is not used; SamplingOptions::max_tokens"),
            std::string::npos)
      << info;
  size_t notes = 0;
  for (size_t at = info.find("note "); at != std::string::npos; at = info.find("note ", at + 1)) ++notes;
  EXPECT_EQ(notes, 2u) << info;
}

TEST_F(Commands, TrainTakesOnlyEndTokensFromTheModel) {
  const auto train = [&](const Json& generation, const std::string& save) {
    recipes::RlOptions options;
    options.base = {.hf_checkpoint = model_with(kArith, "generation_config.json", generation),
                    .stream = {.threads = 2},
                    .device = "cpu"};
    options.adapter.config.rank = 2;
    options.adapter.config.target_modules = {"q_proj"};
    options.training.global_batch_size = 4;
    options.prompt_data = kArith + "/train.jsonl@[0:2]";
    options.input_key = "prompt";
    options.label_key = "label";
    options.num_rollout = 1;
    options.rollout_batch_size = 2;
    options.n_samples = 2;
    options.sampling.max_tokens = 8;
    options.save.save = path(save);
    recipes::run_rl(options, control_);
    const std::string metrics = fs::read_file(path(save) + "/metrics.jsonl");
    return Json::parse(metrics.substr(0, metrics.find('\n')));
  };
  const Json plain = train({{"eos_token_id", 0}}, "plain");
  const Json told = train({{"eos_token_id", 0}, {"temperature", 0.1}, {"top_k", 1}, {"do_sample", false}}, "told");
  for (const char* key : {"reward", "entropy", "response_len", "loss", "grad_norm"})
    EXPECT_EQ(plain.value(key, Json()), told.value(key, Json())) << key;
  // Every token ends a sequence: one token each.
  Json all = Json::array();
  for (int id = 0; id < 288; ++id) all.push_back(id);
  EXPECT_EQ(train({{"eos_token_id", all}}, "ends")["response_len"], 1.0);
}

TEST_F(Commands, GenerateFromAFile) {
  fs::write_file_atomic(path("in.jsonl"), "{\"q\":\"1+1=\",\"id\":\"a\"}\n{\"q\":\"12+34=\",\"id\":\"b\"}\n");
  GenerateOptions options = generate_options(kArith);
  options.input = path("in.jsonl");
  options.input_key = "q";
  options.n = 2;
  run_generate(options, control_);
  const std::vector<Json> rows = lines();
  ASSERT_EQ(rows.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rows[i]["id"], i < 2 ? "a" : "b");
    EXPECT_EQ(rows[i]["index"], i % 2);
    EXPECT_EQ(rows[i]["tokens"].size(), rows[i]["logprobs"].size());
    EXPECT_TRUE(rows[i]["completion"].is_string());
    EXPECT_TRUE(rows[i]["finish_reason"] == "stop" || rows[i]["finish_reason"] == "length");
  }
  fs::write_file_atomic(path("in.jsonl"), "{\"prompt\":\"1+1=\"}\n");
  expect_error<DataError>([&] { run_generate(options, control_); }, {"in.jsonl line 1", "q"});
}

TEST_F(Commands, GenerateStopsBeforeAStopString) {
  GenerateOptions options = generate_options(kArith);
  options.prompt = "12+34=";
  options.sampling.temperature = 0;
  run_generate(options, control_);
  std::string whole = taken(out_);
  ASSERT_GT(whole.size(), 2u);
  options.sampling.stop = {whole.substr(1, 1)};
  run_generate(options, control_);
  EXPECT_EQ(taken(out_), whole.substr(0, whole.find(options.sampling.stop[0])) + "\n");
}

TEST_F(Commands, GenerateScoreAndEvalUseTheAdapter) {
  const std::string adapter = adapter_of(kArith, lora::LoraType::fused, 8);
  fs::write_file_atomic(path("in.jsonl"), "{\"prompt\":\"12+34=\",\"label\":\"46\"}\n");
  GenerateOptions generate = generate_options(kArith);
  generate.input = path("in.jsonl");
  generate.sampling.temperature = 0;
  run_generate(generate, control_);
  const Json base = lines()[0];
  generate.adapter_path = adapter;
  run_generate(generate, control_);
  const Json adapted = lines()[0];
  EXPECT_NE(base["logprobs"], adapted["logprobs"]);
  // A checkpoint stands for its adapter.
  std::filesystem::create_directory(path("iter_0000001"));
  std::filesystem::copy(adapter, path("iter_0000001/lora_adapter"));
  generate.adapter_path = path("iter_0000001");
  run_generate(generate, control_);
  EXPECT_EQ(lines()[0]["logprobs"], adapted["logprobs"]);
  generate.adapter_path = adapter;

  // score gives the engine's log-probs of the same tokens, from text as from ids.
  const auto score = [&](const Json& row, const std::string& adapter_path) {
    fs::write_file_atomic(path("rows.jsonl"), row.dump() + "\n");
    run_score({.base = generate.base,
               .adapter_path = adapter_path,
               .input = path("rows.jsonl"),
               .output = path("scored.jsonl")},
              control_);
    taken(out_);
    return Json::parse(fs::read_file(path("scored.jsonl")));
  };
  const Json prompt = score({{"text", "12+34="}}, "");
  Json tokens = prompt["tokens"];
  const size_t first = tokens.size();
  for (const Json& token : adapted["tokens"]) tokens.push_back(token);
  const Json scored = score({{"tokens", tokens}}, adapter), without = score({{"tokens", tokens}}, "");
  for (size_t i = 0; i < adapted["logprobs"].size(); ++i)
    EXPECT_EQ(scored["logprobs"][first + i], adapted["logprobs"][i]) << i;
  EXPECT_NE(scored["logprobs"], without["logprobs"]);
  EXPECT_TRUE(prompt["logprobs"][0].is_null());
  for (size_t i = 1; i < first; ++i) EXPECT_EQ(prompt["logprobs"][i], without["logprobs"][i]) << i;
  EXPECT_EQ(prompt["text"], "12+34=");

  // Of an adapter that has diverged it says so, as generate and eval do.
  const std::string diverged = adapter_of(kArith, lora::LoraType::canonical);
  const std::string weights = diverged + "/adapter_model.safetensors";
  std::string bytes = fs::read_file(weights);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + bytes.size() - sizeof(nan), &nan, sizeof(nan));
  fs::write_file_atomic(weights, bytes);
  testing::expect_error<DataError>(
      [&] {
        score({{"tokens", tokens}}, diverged);
      },
      {"logits are not finite", "rows.jsonl line 1: tokens[1]"});

  EvalOptions eval;
  eval.base = generate.base;
  eval.prompt_data = path("in.jsonl");
  eval.max_tokens = 8;
  run_eval(eval, control_);
  const std::string plain = taken(out_);
  EXPECT_EQ(plain.rfind("greedy: accuracy ", 0), 0u) << plain;
  EXPECT_NE(plain.find("temperature 1: accuracy "), std::string::npos) << plain;
  EXPECT_NE(plain.find(" over 1 prompts"), std::string::npos) << plain;
  EXPECT_NE(plain.find("12+34="), std::string::npos) << plain;
  EXPECT_NE(plain.find("(label 46)"), std::string::npos) << plain;
  eval.adapter_path = adapter;
  run_eval(eval, control_);
  EXPECT_NE(taken(out_), plain);
  const std::string good = fs::read_file(path("in.jsonl"));
  const std::string long_row = Json{{"prompt", std::string(800, '1')}, {"label", "1"}}.dump() + "\n";
  fs::write_file_atomic(path("in.jsonl"), good + long_row);
  run_eval(eval, control_);
  EXPECT_NE(taken(out_).find(" over 1 prompts (1 too long, dropped), "), std::string::npos);
  fs::write_file_atomic(path("in.jsonl"), long_row);
  try {
    run_eval(eval, control_);
    FAIL() << "no prompt fits";
  } catch (const DataError& error) {
    EXPECT_EQ(error.fault().attempt, "") << "eval has no option that makes prompts fit";
  }
  fs::write_file_atomic(path("in.jsonl"), good);
  eval.reward.choices = {{.kind = rl::RewardKind::command}};
  eval.reward.command = "no_such_program_at_all";
  testing::expect_error<DataError>([&] { run_eval(eval, control_); }, {"no reward is known", "not found"});
  EXPECT_NE(taken(out_).find("accuracy unknown (1 rewards unknown; the first: "), std::string::npos);
}

}  // namespace
}  // namespace lockstep::commands
