// The commands beside training, called as the program calls them: plan, inspect, eval, generate, score.
#include "recipes/commands.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "checkpoint/train_state.h"
#include "core/random.h"
#include "recipes/adapter.h"
#include "support/temp_directory.h"

namespace lockstep::recipes {
namespace {

using lockstep::testing::expect_error;

const std::string kTiny = LOCKSTEP_SOURCE_DIR "/tests/golden/qwen3";
const std::string kArith = LOCKSTEP_SOURCE_DIR "/models/arith";

class Commands : public ::testing::Test {
 protected:
  Commands() {
    control_.out = &out_;
    control_.info = &info_;
  }

  std::string path(const std::string& name) const { return (dir_.path() / name).string(); }
  std::string taken(std::ostringstream& stream) {
    std::string text = stream.str();
    stream.str("");
    return text;
  }

  // `model` with one file replaced.
  std::string model_with(const std::string& model, const std::string& file, const Json& json) {
    const fs::Path copy = dir_.path() / ("model" + std::to_string(num_models_++));
    std::filesystem::create_directories(copy);
    for (const auto& entry : std::filesystem::directory_iterator(model))
      if (entry.is_regular_file() && entry.path().filename() != file)
        std::filesystem::create_symlink(entry.path(), copy / entry.path().filename());
    fs::write_file_atomic(copy / file, json.dump());
    return copy.string();
  }

  // An adapter of `model` as a training run saves it, with values that are not zero; returns its directory.
  std::string adapter_of(const std::string& model, lora::LoraType type, int64_t rank = 4) {
    Stream stream({.threads = 1});
    const Base base = load_base({.hf_checkpoint = model}, stream, control_);
    lora::LoraConfig config;
    config.rank = rank;
    config.alpha = 8;
    config.type = type;
    config.target_modules = {"all-linear"};
    const Adapter adapter = fresh_adapter(config, base, 1);
    num_parameters_ = adapter.layout->num_parameters;
    Buffer values(adapter.weights->bytes());
    for (int64_t i = 0; i < adapter.layout->num_floats; ++i)
      values.f32()[i] = uniform01(philox(5, {static_cast<uint32_t>(i), 0, 0, 0})[0]) - 0.5f;
    const lora::ExportedTensors tensors = lora::export_tensors(*adapter.layout, values.f32());
    const fs::Path directory = dir_.path() / ("adapter" + std::to_string(num_models_++));
    checkpoint::write_peft_directory(directory / checkpoint::kAdapterDirectory, config, adapter.layout->target_leaves,
                                     base.name, tensors.tensors);
    checkpoint::write_adapter_metadata(directory / "vime_lora_metadata.json",
                                       {.iteration = 3,
                                        .version = 7,
                                        .rank = rank,
                                        .alpha = 8,
                                        .lora_type = lora::lora_type_name(type),
                                        .target_modules = adapter.layout->target_leaves,
                                        .base_fingerprint = base.fingerprint});
    taken(info_);
    return (directory / checkpoint::kAdapterDirectory).string();
  }

  // Writes back a JSON file with one value changed.
  static void change(const fs::Path& file, const std::string& key, const Json& value) {
    Json json = read_json(file.string());
    json[key] = value;
    fs::write_file_atomic(file, json.dump());
  }

  SftOptions sft() const {
    SftOptions options;
    options.base = {.hf_checkpoint = kTiny, .stream = {.threads = 1}, .device = "cpu"};
    options.adapter.config.rank = 4;
    options.adapter.config.target_modules = {"all-linear"};
    options.training.global_batch_size = 4;
    options.prompt_data = path("absent.jsonl");
    return options;
  }

  std::vector<Json> lines() {
    std::vector<Json> rows;
    std::istringstream text(taken(out_));
    for (std::string line; std::getline(text, line);) rows.push_back(Json::parse(line));
    return rows;
  }

  testing::TempDirectory dir_;
  std::ostringstream out_, info_;
  Control control_;
  int64_t num_parameters_ = 0;
  int num_models_ = 0;
};

TEST_F(Commands, PlanReadsTheTypeOfTheWeightsInEverySpelling) {
  const Json config = read_json(kTiny + "/config.json");
  const auto weights_line = [&](const char* key, const Json& value) {
    Json json = config;
    json.erase("torch_dtype");
    json.erase("dtype");
    json[key] = value;
    SftOptions options = sft();
    options.base.hf_checkpoint = model_with(kTiny, "config.json", json);
    plan_sft(options, {}, control_);
    const std::string plan = taken(out_);
    const size_t line = plan.find("base weights");
    return plan.substr(line, plan.find('\n', line) - line);
  };
  const std::string full = weights_line("torch_dtype", nullptr), half = weights_line("dtype", "bfloat16");
  EXPECT_EQ(weights_line("dtype", nullptr), full);
  EXPECT_EQ(weights_line("torch_dtype", "float32"), full);
  EXPECT_EQ(weights_line("torch_dtype", "float16"), half);
  EXPECT_NE(full, half);
}

TEST_F(Commands, PlanOfAbsentDataKnowsNoSteps) {
  plan_sft(sft(), {}, control_);
  const std::string plan = taken(out_);
  EXPECT_NE(plan.find("(not on this machine)"), std::string::npos) << plan;
  EXPECT_NE(plan.find("unknown optimizer steps"), std::string::npos) << plan;
  RlOptions rl;
  rl.base = sft().base;
  rl.adapter = sft().adapter;
  rl.prompt_data = path("absent.jsonl");
  rl.num_epoch = 2;
  rl.rollout_batch_size = 4;
  rl.training.global_batch_size = 4;
  plan_rl(rl, {}, control_);
  EXPECT_NE(out_.str().find("unknown rollouts"), std::string::npos) << out_.str();
  EXPECT_NE(out_.str().find("unknown optimizer steps"), std::string::npos) << out_.str();
}

TEST_F(Commands, PlanRefusesAWarmUpLongerThanTheRun) {
  SftOptions options = sft();
  options.prompt_data = path("rows.jsonl");
  fs::write_file_atomic(options.prompt_data, "{\"tokens\":[1,2]}\n{\"tokens\":[1,2]}\n{\"tokens\":[1,2]}\n");
  options.training.global_batch_size = 2;
  options.optimizer.schedule.warmup_steps = 2;
  EXPECT_NO_THROW(plan_sft(options, {}, control_));
  EXPECT_NE(out_.str().find("2 optimizer steps"), std::string::npos) << out_.str();
  options.optimizer.schedule.warmup_steps = 3;
  expect_error<ConfigError>([&] { plan_sft(options, {}, control_); }, {"--lr-warmup-iters", "3", "at most 2"});
}

TEST_F(Commands, PlanLooksAtSaveAndLoadAndWritesNothing) {
  SftOptions options = sft();
  options.save.save = path("a/b/run");
  plan_sft(options, {}, control_);
  EXPECT_EQ(dir_.entries(), 0);
  options.save.load = path("elsewhere");
  expect_error<ConfigError>([&] { plan_sft(options, {}, control_); }, {"--load has no checkpoint", "elsewhere"});
  options.save.load = options.save.save;
  taken(out_);
  plan_sft(options, {}, control_);
  EXPECT_NE(out_.str().find("a fresh start"), std::string::npos) << out_.str();
  dir_.write("file", "");
  options.save = {.save = path("file/below")};
  expect_error<ResourceError>([&] { plan_sft(options, {}, control_); }, {"file/below", "not a directory"});
  dir_.write("damaged/latest_checkpointed_iteration.txt", "x");
  options.save = {.load = path("damaged")};
  expect_error<FormatError>([&] { plan_sft(options, {}, control_); }, {"latest_checkpointed_iteration.txt"});
}

TEST_F(Commands, ShapeFlagsAreNumbers) {
  EXPECT_NO_THROW(check_model_shape(kTiny, {{"num-layers", "2"}}));
  for (const char* bad : {"nan", "-nan", "inf", "3", "x"})
    expect_error<ConfigError>([&] { check_model_shape(kTiny, {{"num-layers", bad}}); }, {"--num-layers", bad});
}

TEST_F(Commands, InspectSaysWhatTheTrainerSaid) {
  for (const lora::LoraType type : {lora::LoraType::fused, lora::LoraType::canonical}) {
    const std::string adapter = adapter_of(kTiny, type);
    run_inspect({.path = adapter}, control_);
    const std::string text = taken(out_);
    for (const std::string& part :
         {std::string("rank        4\nalpha       8\n"), fmt::format("type        {}\n", lora::lora_type_name(type)),
          fmt::format("parameters  {} in 28 tensors", num_parameters_), std::string("version     7\niteration   3\n"),
          "base        " + kTiny + ", fingerprint "})
      EXPECT_NE(text.find(part), std::string::npos) << part << "\nis not in\n" << text;
    // The table's columns end where their titles end.
    std::istringstream lines(text.substr(text.find("modules ")));
    std::string title, row;
    std::getline(lines, title);
    for (int rows = 0; rows < 7; ++rows) {
      ASSERT_TRUE(std::getline(lines, row));
      EXPECT_EQ(row.size(), title.size()) << title << "\n" << row;
    }
    run_inspect({.path = fs::Path(adapter).parent_path().string()}, control_);
    EXPECT_EQ(taken(out_), text);
  }
}

TEST_F(Commands, InspectKnowsForeignAdaptersAndModels) {
  run_inspect({.path = kTiny + "/adapter_pattern"}, control_);
  EXPECT_NE(out_.str().find("made elsewhere"), std::string::npos) << out_.str();
  EXPECT_NE(out_.str().find("judged by names and shapes"), std::string::npos) << out_.str();
  taken(out_);
  run_inspect({.path = kTiny}, control_);
  EXPECT_NE(out_.str().find("family      qwen3"), std::string::npos) << out_.str();
  expect_error<ConfigError>([&] { run_inspect({.path = path("nothing")}, control_); }, {"nothing to inspect"});
}

TEST_F(Commands, InspectShowsADataSet) {
  const std::string parquet = LOCKSTEP_SOURCE_DIR "/tests/golden/parquet/chat_zstd_v2.parquet";
  run_inspect({.path = parquet + "@[3:]", .num_rows = 1}, control_);
  const std::string text = taken(out_);
  for (const char* part :
       {"format      Parquet, 3 row groups, written by parquet-cpp-arrow", "rows        37\n",
        "columns     id: int64\n", "            messages: list<struct<role: string, content: string>>\n",
        "\n{\"id\":3,\"messages\":[{\"role\":"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nis not in\n" << text;
  EXPECT_EQ(text.find("{\"id\":4"), std::string::npos) << text;
  fs::write_file_atomic(path("rows.jsonl"), "{\"b\":1.5,\"a\":\"x\"}\nnope\n");
  run_inspect({.path = path("rows.jsonl")}, control_);
  for (const char* part : {"JSON Lines\n", "rows        2\n", "b: number\n            a: string\n",
                           "{\"b\":1.5,\"a\":\"x\"}\n", "rows.jsonl line 2: invalid JSON"})
    EXPECT_NE(out_.str().find(part), std::string::npos) << part << "\nis not in\n" << out_.str();
}

TEST_F(Commands, InspectRefusesWhatWouldNotLoad) {
  const std::string adapter = adapter_of(kTiny, lora::LoraType::canonical);
  change(fs::Path(adapter) / "adapter_config.json", "r", 5);
  expect_error<ShapeError>([&] { run_inspect({.path = adapter}, control_); },
                           {"adapter_model.safetensors: base_model.model.model.layers.0", "[4, 64]", "[5, 64]"});
  change(fs::Path(adapter) / "adapter_config.json", "r", 4);
  change(fs::Path(adapter) / "adapter_config.json", "target_modules", {"c_attn"});
  expect_error<FormatError>([&] { run_inspect({.path = adapter}, control_); },
                            {"adapter_config.json: target_modules", "c_attn"});
}

TEST_F(Commands, FaultsOfAnAdapterNameFileAndField) {
  Stream stream({.threads = 1});
  const Base base = load_base({.hf_checkpoint = kTiny}, stream, control_);
  const auto faulty = [&](const char* file, const char* key, const Json& value, const char* place) {
    SCOPED_TRACE(place);
    const std::string adapter = adapter_of(kTiny, lora::LoraType::canonical);
    change(fs::Path(adapter) / file, key, value);
    expect_error<FormatError>([&] { load_adapter(adapter, base); }, {place});
  };
  const char* config = "adapter_config.json";
  faulty(config, "target_modules", {"c_attn"}, "lora_adapter/adapter_config.json: target_modules");
  faulty(config, "target_modules", "(q_proj", "lora_adapter/adapter_config.json: target_modules");
  faulty(config, "lora_alpha", 0, "lora_adapter/adapter_config.json: lora_alpha");
  faulty(config, "layers_to_transform", {99}, "lora_adapter/adapter_config.json: layers_to_transform");
  faulty(config, "r", int64_t{1} << 17, "lora_adapter/adapter_config.json: r");
  faulty("../vime_lora_metadata.json", "base_fingerprint", std::string(64, '0'),
         "vime_lora_metadata.json: base_fingerprint");
  faulty("../vime_lora_metadata.json", "version", -1, "vime_lora_metadata.json: version");
  const std::string other = adapter_of(kArith, lora::LoraType::canonical);
  std::filesystem::remove(fs::Path(other).parent_path() / "vime_lora_metadata.json");
  expect_error<ShapeError>([&] { load_adapter(other, base); },
                           {"lora_adapter/adapter_model.safetensors: base_model.model.model.layers.0."});
}

TEST_F(Commands, AModelThatLacksATensorIsNamed) {
  const std::string llama = LOCKSTEP_SOURCE_DIR "/tests/golden/smollm2";
  Json config = read_json(llama + "/config.json");
  config["num_hidden_layers"] = 3;
  const std::string model = model_with(llama, "config.json", config);
  Stream stream({.threads = 1});
  expect_error<FormatError>([&] { load_base({.hf_checkpoint = model}, stream, control_); },
                            {(model + ": model.layers.2.").c_str()});
}

GenerateOptions generate_options(const std::string& model) {
  GenerateOptions options;
  options.base = {.hf_checkpoint = model, .stream = {.threads = 2}, .device = "cpu"};
  options.max_tokens = 12;
  return options;
}

TEST_F(Commands, GenerateTakesSamplingDefaultsFromTheModel) {
  const auto answer = [&](const Json& generation, uint64_t seed, std::optional<float> temperature = {}) {
    GenerateOptions options = generate_options(model_with(kArith, "generation_config.json", generation));
    options.prompt = "12+34=";
    options.seed = seed;
    options.temperature = temperature;
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
  EXPECT_NE(info.find("note    generation_config.json: repetition_penalty 1.1 is not used\n"), std::string::npos)
      << info;
  EXPECT_NE(info.find("note    generation_config.json: max_new_tokens 2048 is not used; --max-tokens"),
            std::string::npos)
      << info;
  size_t notes = 0;
  for (size_t at = info.find("note "); at != std::string::npos; at = info.find("note ", at + 1)) ++notes;
  EXPECT_EQ(notes, 2u) << info;
}

TEST_F(Commands, TrainTakesOnlyEndTokensFromTheModel) {
  const auto train = [&](const Json& generation, const std::string& save) {
    RlOptions options;
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
    run_rl(options, control_);
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
  options.temperature = 0;
  run_generate(options, control_);
  std::string whole = taken(out_);
  ASSERT_GT(whole.size(), 2u);
  options.stop = {whole.substr(1, 1)};
  run_generate(options, control_);
  EXPECT_EQ(taken(out_), whole.substr(0, whole.find(options.stop[0])) + "\n");
}

TEST_F(Commands, GenerateScoreAndEvalUseTheAdapter) {
  const std::string adapter = adapter_of(kArith, lora::LoraType::fused, 8);
  fs::write_file_atomic(path("in.jsonl"), "{\"prompt\":\"12+34=\",\"label\":\"46\"}\n");
  GenerateOptions generate = generate_options(kArith);
  generate.input = path("in.jsonl");
  generate.temperature = 0;
  run_generate(generate, control_);
  const Json base = lines()[0];
  generate.adapter_path = adapter;
  run_generate(generate, control_);
  const Json adapted = lines()[0];
  EXPECT_NE(base["logprobs"], adapted["logprobs"]);

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
}

TEST_F(Commands, AnAdapterOfHighRankLoads) {
  const std::string adapter = adapter_of(kTiny, lora::LoraType::canonical, 70);  // the model is 64 wide
  Stream stream({.threads = 1});
  const Base base = load_base({.hf_checkpoint = kTiny}, stream, control_);
  EXPECT_EQ(load_adapter(adapter, base).layout->pairs[0].rank, 70);
}

}  // namespace
}  // namespace lockstep::recipes
