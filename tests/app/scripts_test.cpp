// Published launch scripts: both full lists, and every flag of every list belongs to one of the known classes.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "app/arguments.h"
#include "app/launch_flags.h"
#include "cli/classify.h"
#include "cli/command_line.h"
#include "cli/known.h"
#include "cli/parse.h"
#include "cli/train_flags.h"
#include "core/error.h"
#include "recipes/layout.h"
#include "support/temp_directory.h"

namespace lockstep::cli {
namespace {

bool has_note(const std::vector<std::string>& notes, const std::string& flag) {
  return std::ranges::count_if(notes, [&](const std::string& note) { return note.starts_with(flag + ": "); }) == 1;
}

// As the error of the list as it stands says.
constexpr char kGsm8kWithout[] = " --without actor-num-gpus-per-node";
constexpr char kDapoWithout[] = " --without tensor-model-parallel-size";

void expect_not_available(const std::string& launch, const std::string& what, const std::string& without) {
  try {
    parse_train(words(launch));
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.fault().what, "not available yet: " + what);
    EXPECT_TRUE(error.fault().attempt.ends_with(":" + without)) << error.fault().attempt;
    EXPECT_EQ(error.exit_code(), 2);
  }
}

TEST(Scripts, Gsm8kLaunchAsksForEightGpus) {
  const recipes::Layout layout = recipes::layout_of(parse_train(words(kGsm8kLaunch)).options.training);
  EXPECT_EQ(layout.ranks(), 8);
  EXPECT_EQ(layout.devices_per_host, 8);
  EXPECT_EQ(layout.engine_devices, 0);
}

TEST(Scripts, Gsm8kLaunchWritesARunOfWandb) {
  const auto reports = parse_train(words(std::string(kGsm8kLaunch) + kGsm8kWithout)).options.save.reports;
  EXPECT_TRUE(reports.wandb);
  EXPECT_EQ(reports.wandb_entity, "miles-lora");
  EXPECT_EQ(reports.wandb_project, "miles-lora-megatron");
  const auto without = parse_train(
      words(std::string(kGsm8kLaunch) + kGsm8kWithout + ",use-wandb,wandb-host,wandb-team,wandb-project,wandb-group"));
  EXPECT_FALSE(without.options.save.reports.any());
  EXPECT_TRUE(has_note(without.notes, "--use-wandb"));
}

TEST(Scripts, Gsm8kLaunchBecomesOptions) {
  const auto command = parse_train(words(std::string(kGsm8kLaunch) + kGsm8kWithout));
  const recipes::RlOptions& o = command.options;
  EXPECT_EQ(o.base.hf_checkpoint, "/root/Qwen2.5-0.5B-Instruct/");
  EXPECT_EQ(o.adapter.config.rank, 32);
  EXPECT_EQ(o.adapter.config.alpha, 32);
  EXPECT_EQ(o.adapter.config.dropout, 0);
  EXPECT_EQ(o.adapter.config.target_modules, std::vector<std::string>{"all-linear"});
  EXPECT_EQ(o.adapter.config.type, lora::LoraType::fused);
  EXPECT_EQ(o.optimizer.schedule.lr, 1e-5);
  EXPECT_EQ(o.optimizer.weight_decay, 0.1);
  EXPECT_EQ(o.optimizer.beta1, 0.9);
  EXPECT_EQ(o.optimizer.beta2, 0.98);
  EXPECT_EQ(o.optimizer.schedule.style, train::DecayStyle::constant);
  EXPECT_EQ(o.loss.clip_low, 0.2f);
  EXPECT_EQ(o.loss.clip_high, 0.28f);
  EXPECT_EQ(o.loss.kl_type, train::KlType::low_var);
  EXPECT_EQ(o.loss.kl_coef, 0);
  EXPECT_FALSE(o.use_kl_loss);
  EXPECT_EQ(o.training.max_tokens, 9216);
  EXPECT_EQ(o.training.global_batch_size, 256);
  EXPECT_EQ(o.num_steps_per_rollout, 1);
  EXPECT_TRUE(o.training.per_token_loss);
  EXPECT_EQ(o.prompt_data, "/root/gsm8k/train.jsonl");
  EXPECT_EQ(o.input_key, "messages");
  EXPECT_EQ(o.label_key, "label");
  EXPECT_TRUE(o.shuffle);
  EXPECT_EQ(o.reward.choices.at(0).rule.type, rl::RewardType::math);
  EXPECT_EQ(o.num_rollout, 100);
  EXPECT_EQ(o.rollout_batch_size, 32);
  EXPECT_EQ(o.n_samples, 8);
  EXPECT_EQ(o.sampling.max_tokens, 1024);
  EXPECT_EQ(o.sampling.temperature, 1);
  EXPECT_EQ(o.eval_interval, 10);
  ASSERT_EQ(o.eval_sets.size(), 1u);
  EXPECT_EQ(o.eval_sets[0].name, "gsm8k");
  EXPECT_EQ(o.eval_sets[0].path, "/root/gsm8k/test.jsonl");
  EXPECT_EQ(o.eval_samples, 1);
  EXPECT_EQ(o.eval_sampling.max_tokens, 1024);
  EXPECT_EQ(o.eval_sampling.top_k, 1);
  EXPECT_EQ(o.sampling.top_k, -1);
}

TEST(Scripts, Gsm8kLaunchSaysWhatItsOtherFlagsBecame) {
  const auto command = parse_train(words(std::string(kGsm8kLaunch) + kGsm8kWithout));
  for (const char* flag : {"--megatron-to-hf-mode", "--optimizer", "--actor-num-gpus-per-node", "--use-wandb",
                           "--wandb-host", "--tensor-model-parallel-size", "--sequence-parallel",
                           "--sglang-mem-fraction-static", "--attention-backend", "--use-dynamic-batch-size"})
    EXPECT_TRUE(has_note(command.notes, flag)) << flag;
  const std::vector<std::pair<std::string, std::string>> shape = {{"swiglu", "true"},
                                                                  {"num-layers", "24"},
                                                                  {"hidden-size", "896"},
                                                                  {"ffn-hidden-size", "4864"},
                                                                  {"num-attention-heads", "14"},
                                                                  {"use-rotary-position-embeddings", "true"},
                                                                  {"disable-bias-linear", "true"},
                                                                  {"add-qkv-bias", "true"},
                                                                  {"normalization", "RMSNorm"},
                                                                  {"norm-epsilon", "1e-6"},
                                                                  {"rotary-base", "1000000"},
                                                                  {"group-query-attention", "true"},
                                                                  {"num-query-groups", "2"},
                                                                  {"vocab-size", "151936"}};
  EXPECT_EQ(command.shape, shape);
}

constexpr char kDapoMissing[] = "--tensor-model-parallel-size 2";

TEST(Scripts, DapoLaunchEndsInOneErrorThatNamesWhatIsMissing) {
  expect_not_available(kDapoLaunch, kDapoMissing, kDapoWithout);
}

// config.json of Qwen/Qwen2.5-0.5B-Instruct; no weights beside it.
constexpr char kQwenConfig[] = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
  "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
  "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14,
  "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.43.1",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

std::string dry_run(const std::string& launch, const std::string& model) {
  Values args = words("train " + launch + " --dry-run --hf-checkpoint " + model);
  std::ostringstream out, err;
  EXPECT_EQ(run(args, {.out = &out, .err = &err}), 0);
  EXPECT_EQ(err.str(), "");
  return out.str();
}

TEST(Scripts, Gsm8kLaunchPassesDryRun) {
  const testing::TempDirectory dir;
  dir.write("config.json", kQwenConfig);
  const std::string printed = dry_run(std::string(kGsm8kLaunch) + kGsm8kWithout, dir.path().string());
  for (const char* part :
       {"qwen2, 24 layers, width 896, vocabulary 151936",
        "adapter     lora rank 32 alpha 32 on down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj",
        "parameters  509564800 total, 15532032 trainable", "base weights           988.2 MB",
        "micro-batch of 9216 tokens", "data        /root/gsm8k/train.jsonl (not on this machine)",
        "evaluation  gsm8k: /root/gsm8k/test.jsonl (not on this machine), every 10 rollouts",
        "32 prompts x 8 samples = 256 samples, at most 1024 new tokens, temperature 1",
        "batch       256 samples a step, 1 steps a rollout, 100 rollouts",
        "AdamW lr 1e-05 (constant), betas 0.9 0.98, eps 1e-08, weight decay 0.1, clip 1",
        "            100 optimizer steps", "save        nothing (no --save)", "compatibility flags",
        "  --actor-num-gpus-per-node: left out (--without)", "  --sglang-mem-fraction-static: an engine setting"})
    EXPECT_NE(printed.find(part), std::string::npos) << part << "\nis not in\n" << printed;
  EXPECT_EQ(printed.find("layout "), std::string::npos) << "one rank has none";
  EXPECT_EQ(dir.entries(), 1);
}

TEST(Scripts, DapoLaunchFailsDryRunInTheSameWords) {
  testing::expect_error<ConfigError>([] { dry_run(kDapoLaunch, "/nonexistent"); },
                                     {"not available yet", kDapoMissing, kDapoWithout});
}

TEST(Scripts, DapoLaunchRunsWithoutThem) {
  const auto command = parse_train(words(std::string(kDapoLaunch) + kDapoWithout));
  EXPECT_TRUE(command.options.need_spread);
  EXPECT_EQ(command.options.over_sampling, 64);
  EXPECT_EQ(command.options.reward.choices.at(0).rule.type, rl::RewardType::deepscaler);
  EXPECT_TRUE(has_note(command.notes, "--rm-type deepscaler"));
  EXPECT_EQ(command.options.training.recompute, model::Recompute::full);
  EXPECT_EQ(command.options.training.global_batch_size, 128);
  EXPECT_TRUE(has_note(command.notes, "--tensor-model-parallel-size 2"));
  rejects("--rm-type math --without over-sampling-batch-size", {"--over-sampling-batch-size", "do without"});
}

TEST(Scripts, ParquetDataIsRead) {
  const auto command =
      parse_train(train_args("--prompt-data t.parquet --eval-prompt-data gsm8k e.parquet --eval-interval 1"));
  EXPECT_EQ(command.options.prompt_data, "t.parquet");
  ASSERT_EQ(command.options.eval_sets.size(), 1u);
  EXPECT_EQ(command.options.eval_sets[0].path, "e.parquet");
  EXPECT_EQ(command.options.max_bad_rows, 0);
  EXPECT_EQ(parse_train(train_args("--prompt-data t.parquet --max-bad-rows 7")).options.max_bad_rows, 7);
}

TEST(Scripts, PpoLaunchPassesDryRun) {
  const testing::TempDirectory dir;
  dir.write("config.json", kQwenConfig);
  const std::string printed = dry_run(
      std::string(kPpoLaunch) + " --without pipeline-model-parallel-size,context-parallel-size", dir.path().string());
  for (const char* part :
       {"critic      lora rank 32, with a value head, ", "adapters' versions",
        "advantages  GAE of the critic's values, gamma 1, lambda 1; values are clipped at 0.2",
        "critic      lr 1e-05, 0 steps of warm-up, alone for 1 rollouts",
        "batch       32 samples a step, 2 steps a rollout, 300 rollouts", "            598 optimizer steps"})
    EXPECT_NE(printed.find(part), std::string::npos) << part << "\nis not in\n" << printed;
  EXPECT_NE(printed.find("layout      4 ranks on 1 host with 4 GPUs each: needs 4 GPUs, here "), std::string::npos);
}

void expect_known(const std::string& flag) {
  TrainForm form;
  try {
    classify({flag, "1"}, train_flags(form), Scripts::train, nullptr, 1);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.fault().what.find("unknown"), std::string::npos) << error.what();
  }
}

TEST(Scripts, EveryPublishedFlagHasAClass) {
  const Values launch = words(kLaunchFlags);
  EXPECT_EQ(launch.size(), 233u);
  for (const std::string& flag : launch) expect_known(flag);
  for (const std::string& flag : words(kTableFlags)) expect_known(flag);
}

TEST(Scripts, NoFlagIsInTwoClasses) {
  TrainForm form;
  const FlagSet flags = train_flags(form);
  std::vector<std::string> names;
  for (const FlagSet::Group& group : flags.groups())
    for (const Flag& flag : group.flags) names.push_back(flag.name);
  for (const ShapeFlag& row : shape_flags()) names.emplace_back(row.name);
  // Reports and layouts that are available have a row for --without, too.
  for (const Compatible& row : compatible_flags())
    if (row.effect != Effect::told) names.emplace_back(row.name);
  for (const ClaimFlag& row : claim_flags()) names.emplace_back(row.name);
  for (const std::string_view name : later_flags()) names.emplace_back(name);
  for (const std::string& name : engine_flag_names()) names.push_back(name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  EXPECT_EQ(twice, names.end()) << *twice;
}

}  // namespace
}  // namespace lockstep::cli
