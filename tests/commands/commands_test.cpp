// The commands beside training, called as the program calls them: dry runs, inspect; faults of adapters and models.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/train_state.h"
#include "commands/commands_fixture.h"
#include "recipes/model_shape.h"

namespace lockstep::commands {
namespace {

using lockstep::testing::expect_error;

TEST_F(Commands, PlanReadsTheTypeOfTheWeightsInEverySpelling) {
  const Json config = read_json(kTiny + "/config.json");
  const auto weights_line = [&](const char* key, const Json& value) {
    Json json = config;
    json.erase("torch_dtype");
    json.erase("dtype");
    json[key] = value;
    recipes::SftOptions options = sft();
    options.base.hf_checkpoint = model_with(kTiny, "config.json", json);
    dry_run_sft(options, {}, control_);
    const std::string printed = taken(out_);
    const size_t line = printed.find("base weights");
    return printed.substr(line, printed.find('\n', line) - line);
  };
  const std::string full = weights_line("torch_dtype", nullptr), half = weights_line("dtype", "bfloat16");
  EXPECT_EQ(weights_line("dtype", nullptr), full);
  EXPECT_EQ(weights_line("torch_dtype", "float32"), full);
  EXPECT_EQ(weights_line("torch_dtype", "float16"), half);
  EXPECT_NE(full, half);
}

TEST_F(Commands, PlanOfAbsentDataKnowsNoSteps) {
  dry_run_sft(sft(), {}, control_);
  const std::string printed = taken(out_);
  EXPECT_NE(printed.find("(not on this machine)"), std::string::npos) << printed;
  EXPECT_NE(printed.find("unknown optimizer steps"), std::string::npos) << printed;
  recipes::RlOptions rl;
  rl.base = sft().base;
  rl.adapter = sft().adapter;
  rl.prompt_data = path("absent.jsonl");
  rl.num_epoch = 2;
  rl.rollout_batch_size = 4;
  rl.training.global_batch_size = 4;
  dry_run_rl(rl, {}, control_);
  EXPECT_NE(out_.str().find("unknown rollouts"), std::string::npos) << out_.str();
  EXPECT_NE(out_.str().find("unknown optimizer steps"), std::string::npos) << out_.str();
}

TEST_F(Commands, PlanSaysWhatIsSampledAheadAndShowsNoKey) {
  recipes::RlOptions rl;
  rl.base = sft().base;
  rl.adapter = sft().adapter;
  rl.prompt_data = path("absent.jsonl");
  rl.num_rollout = 9;
  rl.rollout_batch_size = 4;
  rl.training.global_batch_size = 4;
  const auto plan = [&] {
    dry_run_rl(rl, {}, control_);
    return taken(out_);
  };
  const std::string in_turn = plan();
  EXPECT_EQ(in_turn.find("ahead "), std::string::npos) << in_turn;
  EXPECT_NE(in_turn.find("  (2)\n"), std::string::npos) << in_turn;
  rl.staleness = {.max_staleness = 2, .update_interval = 3};
  const std::string stale = plan();
  for (const char* part :
       {"the adapter of r - 2 iterations of training (the first one for r < 2), rounded down to a multiple of 3",
        "up to 4 iterations old", "held at once: 5 versions", "samples of up to 5 rollouts", "--true-on-policy-mode"})
    EXPECT_NE(stale.find(part), std::string::npos) << part << "\nis not in\n" << stale;
  // As many as are held, and the one being made; the sum counts them.
  EXPECT_NE(stale.find("  (6)\n"), std::string::npos) << stale;
  const auto bytes = [](const std::string& text, const char* what) {
    const size_t at = text.find(what);
    return at == std::string::npos ? -1 : std::stod(text.substr(text.find_first_of("0123456789", at)));
  };
  EXPECT_NEAR(bytes(stale, "adapter versions"), 3 * bytes(in_turn, "adapter versions"), 0.31);
  rl.staleness = {};
  rl.engine.kind = rollout::EngineKind::vllm;
  rl.engine.command = "vllm serve --api-key hunter2";
  EXPECT_NE(plan().find("vllm serve --api-key ***"), std::string::npos);
  rl.engine.addresses = {"http://u:hunter2@h:80"};
  EXPECT_EQ(plan().find("hunter2"), std::string::npos);
}

TEST_F(Commands, PlanComparesWhatIsAskedWithTheAdapterToStartFrom) {
  recipes::SftOptions options = sft();
  options.base.hf_checkpoint = LOCKSTEP_SOURCE_DIR "/tests/golden/llama3";
  options.adapter = {.config = {}, .adapter_path = LOCKSTEP_SOURCE_DIR "/tests/golden/llama3/adapter"};
  dry_run_sft(options, {}, control_);
  EXPECT_NE(out_.str().find("rank 4 "), std::string::npos) << out_.str();
  options.adapter.config.rank = 8;
  expect_error<ConfigError>([&] { dry_run_sft(options, {}, control_); }, {"has another", "LoraConfig::rank", "8", "4"});
}

TEST_F(Commands, PlanReadsTheRowsThatAreHeldOut) {
  recipes::SftOptions options = sft();
  options.base.hf_checkpoint = LOCKSTEP_SOURCE_DIR "/models/arith";
  options.eval_sets = {{.name = "held", .path = path("held.jsonl")}};
  options.eval_interval = 1;
  fs::write_file_atomic(path("held.jsonl"),
                        "{\"tokens\":[1,2,3],\"loss_mask\":[0,1,1]}\n{\"tokens\":[1,2],\"loss_mask\":[0,1]}\n");
  dry_run_sft(options, {}, control_);
  EXPECT_NE(out_.str().find("2 rows from " + path("held.jsonl") + ": 5 tokens"), std::string::npos) << out_.str();
  fs::write_file_atomic(path("held.jsonl"), "{\"tokens\":[1,2,3],\"loss_mask\":[0,1,1]}\n{\"prompt\":\"a\"}\n");
  expect_error<DataError>([&] { dry_run_sft(options, {}, control_); }, {"held.jsonl line 2", "completion"});
}

TEST_F(Commands, PlanRefusesAWarmUpLongerThanTheRun) {
  recipes::SftOptions options = sft();
  options.prompt_data = path("rows.jsonl");
  fs::write_file_atomic(options.prompt_data, "{\"tokens\":[1,2]}\n{\"tokens\":[1,2]}\n{\"tokens\":[1,2]}\n");
  options.training.global_batch_size = 2;
  options.optimizer.schedule.warmup_steps = 2;
  EXPECT_NO_THROW(dry_run_sft(options, {}, control_));
  EXPECT_NE(out_.str().find("2 optimizer steps"), std::string::npos) << out_.str();
  options.optimizer.schedule.warmup_steps = 3;
  expect_error<ConfigError>([&] { dry_run_sft(options, {}, control_); }, {"Schedule::warmup_steps", "3", "at most 2"});
}

TEST_F(Commands, PlanLooksAtSaveAndLoadAndWritesNothing) {
  recipes::SftOptions options = sft();
  options.save.save = path("a/b/run");
  dry_run_sft(options, {}, control_);
  EXPECT_EQ(dir_.entries(), 0);
  options.save.load = path("elsewhere");
  expect_error<ConfigError>([&] { dry_run_sft(options, {}, control_); },
                            {"SaveOptions::load has no checkpoint", "elsewhere"});
  options.save.load = options.save.save;
  taken(out_);
  dry_run_sft(options, {}, control_);
  EXPECT_NE(out_.str().find("a fresh start"), std::string::npos) << out_.str();
  dir_.write("file", "");
  options.save = {.save = path("file/below")};
  expect_error<ResourceError>([&] { dry_run_sft(options, {}, control_); }, {"file/below", "not a directory"});
  // What cannot be looked at is not what is not there.
  std::filesystem::create_symlink("loop", dir_ / "loop");
  options.save = {.save = path("loop/run")};
  expect_error<ResourceError>([&] { dry_run_sft(options, {}, control_); }, {"loop/run", "symbolic links"});
  dir_.write("damaged/latest_checkpointed_iteration.txt", "x");
  options.save = {.load = path("damaged")};
  expect_error<FormatError>([&] { dry_run_sft(options, {}, control_); }, {"latest_checkpointed_iteration.txt"});
}

TEST_F(Commands, ShapeFlagsAreNumbers) {
  EXPECT_NO_THROW(recipes::check_model_shape({.hf_checkpoint = kTiny}, {{"num-layers", "2"}}));
  for (const char* bad : {"nan", "-nan", "inf", "3", "x"})
    expect_error<ConfigError>(
        [&] {
          recipes::check_model_shape({.hf_checkpoint = kTiny}, {{"num-layers", bad}});
        },
        {"--num-layers", bad});
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
  for (const auto& [name, kind] : {std::pair("dora", ", DoRA"), std::pair("bias", ", all biases"),
                                   std::pair("modules_to_save", ", lm_head whole")}) {
    run_inspect({.path = LOCKSTEP_SOURCE_DIR "/tests/golden/qwen2_untied/adapter_" + std::string(name)}, control_);
    const std::string text = taken(out_);
    EXPECT_NE(text.find(kind), std::string::npos) << text;
    EXPECT_NE(text.find("q_proj             "), std::string::npos) << text;
  }
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

}  // namespace
}  // namespace lockstep::commands
