// sft, score, generate, eval, bench, inspect, render.
#include <gtest/gtest.h>

#include "app/arguments.h"
#include "cli/parse.h"
#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep::cli {
namespace {

using testing::expect_error;

void sft_rejects(const std::string& more, std::initializer_list<const char*> parts) {
  SCOPED_TRACE(more);
  expect_error<ConfigError>([&] { parse_sft(sft_args(more)); }, parts);
}

TEST(Sft, DefaultsAndFlags) {
  const auto plain = parse_sft(sft_args()).options;
  EXPECT_EQ(plain.optimizer.schedule.lr, 1e-6);
  EXPECT_EQ(plain.training.global_batch_size, 8);
  EXPECT_EQ(plain.num_epoch, 1);
  EXPECT_EQ(plain.shuffle_seed, 42u);
  EXPECT_FALSE(plain.shuffle);
  const auto told =
      parse_sft(sft_args("--lr 1e-3 --global-batch-size 3 --num-epoch 2 --rollout-shuffle --rollout-seed 5 "
                         "--lora-dropout 0.05 --calculate-per-token-loss --dry-run"));
  EXPECT_EQ(told.options.optimizer.schedule.lr, 1e-3);
  EXPECT_EQ(told.options.training.global_batch_size, 3);
  EXPECT_EQ(told.options.num_epoch, 2);
  EXPECT_TRUE(told.options.shuffle);
  EXPECT_EQ(told.options.shuffle_seed, 5u);
  EXPECT_EQ(told.options.adapter.config.dropout, 0.05);
  EXPECT_TRUE(told.options.training.per_token_loss);
  EXPECT_TRUE(told.dry_run);
  EXPECT_NE(sft_help().find("--lr X=1e-6"), std::string::npos);
}

TEST(Sft, Rules) {
  expect_error<ConfigError>([] { parse_sft({}); }, {"missing: --hf-checkpoint, --prompt-data"});
  expect_error<ConfigError>([] { parse_sft(words("--hf-checkpoint M --prompt-data d")); }, {"give --lora-rank"});
  expect_error<ConfigError>([] { parse_sft(words("--hf-checkpoint M --prompt-data d --lora-rank 4")); },
                            {"needs --target-modules"});
  sft_rejects("--lora-dropout 1", {"--lora-dropout", "below 1"});
  sft_rejects("--freeze-params-name-list a", {"LoRA excludes"});
  sft_rejects("--save-interval 2", {"needs --save"});
  sft_rejects("--prompt-data d.parquet", {"not available yet: --prompt-data d.parquet"});
}

TEST(Sft, LaunchScriptsOfSupervisedRuns) {
  const auto command = parse_sft(
      sft_args("--save s --loss-type sft_loss --rollout-function-path slime.rollout.sft_rollout.generate_rollout "
               "--disable-compute-advantages-and-returns --debug-train-only --rollout-batch-size 128 --colocate "
               "--num-layers 2"));
  EXPECT_EQ(command.notes.size(), 6u);
  EXPECT_EQ(command.shape.size(), 1u);
  sft_rejects("--loss-type policy_loss --input-key messages --loss-mask-type qwen",
              {"not available yet: --loss-type policy_loss, --input-key, --loss-mask-type"});
  sft_rejects("--rollout-function-path my.own", {"not available yet: --rollout-function-path my.own"});
  sft_rejects("--rollout-temperature 1", {"unknown: --rollout-temperature (a flag of `lockstep train`)"});
}

TEST(Score, FlagsAndRules) {
  const auto options = parse_score(words("--hf-checkpoint M --lora-adapter-path A --input i --output o --threads 2"));
  EXPECT_EQ(options.base.hf_checkpoint, "M");
  EXPECT_EQ(options.adapter_path, "A");
  EXPECT_EQ(options.input, "i");
  EXPECT_EQ(options.output, "o");
  EXPECT_EQ(options.base.stream.threads, 2);
  expect_error<ConfigError>([] { parse_score(words("--hf-checkpoint M")); }, {"missing: --input, --output"});
  expect_error<ConfigError>([] { parse_score(words("--hf-checkpoint M --colocate")); }, {"unknown: --colocate"});
}

TEST(Generate, OnlyWhatIsGivenIsSet) {
  const auto plain = parse_generate({"--hf-checkpoint", "M", "--prompt", ""});
  EXPECT_EQ(plain.prompt, "");
  EXPECT_FALSE(plain.temperature || plain.top_p || plain.top_k || plain.min_p);
  EXPECT_EQ(plain.max_tokens, 256);
  const auto told =
      parse_generate(words("--hf-checkpoint M --input i --input-key q --temperature 0 --top-p 0.5 --top-k -1 "
                           "--min-p 0.1 --max-tokens 4 --seed 3 --n 2 --stop a b"));
  EXPECT_EQ(told.input, "i");
  EXPECT_EQ(told.input_key, "q");
  EXPECT_EQ(told.temperature, 0);
  EXPECT_EQ(told.top_p, 0.5f);
  EXPECT_EQ(told.top_k, -1);
  EXPECT_EQ(told.min_p, 0.1f);
  EXPECT_EQ(told.max_tokens, 4);
  EXPECT_EQ(told.seed, 3u);
  EXPECT_EQ(told.n, 2);
  EXPECT_EQ(told.stop, (std::vector<std::string>{"a", "b"}));
}

TEST(Generate, NeedsOnePrompt) {
  expect_error<ConfigError>([] { parse_generate(words("--hf-checkpoint M")); },
                            {"one of --prompt and --input", "neither"});
  expect_error<ConfigError>([] { parse_generate(words("--hf-checkpoint M --prompt a --input b")); }, {"both"});
}

TEST(Eval, FlagsAndRules) {
  const auto plain = parse_eval(words("--hf-checkpoint M --prompt-data d"));
  EXPECT_EQ(plain.temperatures, (std::vector<float>{0, 1}));
  const auto told =
      parse_eval(words("--hf-checkpoint M --prompt-data d --temperature 0.5 --rm-type exact --n 3 --num-examples 0"));
  EXPECT_EQ(told.temperatures, std::vector<float>{0.5f});
  EXPECT_EQ(told.reward, recipes::RewardType::exact);
  EXPECT_EQ(told.n, 3);
  EXPECT_EQ(told.num_examples, 0);
  expect_error<ConfigError>([] { parse_eval(words("--hf-checkpoint M")); }, {"missing: --prompt-data"});
  expect_error<ConfigError>([] { parse_eval(words("--hf-checkpoint M --prompt-data d --rm-type f1")); },
                            {"not available yet: --rm-type f1"});
}

TEST(Bench, Flags) {
  const auto plain = parse_bench(words("--hf-checkpoint M"));
  EXPECT_TRUE(plain.decode_batches.empty());
  EXPECT_EQ(plain.batch_size, std::nullopt);
  EXPECT_EQ(plain.base.load_format, recipes::LoadFormat::automatic);
  const auto told =
      parse_bench(words("--hf-checkpoint M --batch-size 4 --seq-length 128 --lora-rank 8 --json f --decode-batch 2,3 5 "
                        "--prompt-length 7 --new-tokens 9 --load-format dummy --only train,decode"));
  EXPECT_EQ(told.batch_size, 4);
  EXPECT_EQ(told.seq_length, 128);
  EXPECT_EQ(told.lora_rank, 8);
  EXPECT_EQ(told.json, "f");
  EXPECT_EQ(told.decode_batches, (std::vector<int64_t>{2, 3, 5}));
  EXPECT_EQ(told.base.load_format, recipes::LoadFormat::dummy);
  EXPECT_EQ(told.parts, (std::vector<std::string>{"train", "decode"}));
  expect_error<ConfigError>([] { parse_bench(words("--hf-checkpoint M --only train,dcode")); }, {"dcode", "grpo"});
  expect_error<ConfigError>([] { parse_bench(words("--hf-checkpoint M --decode-batch 1,,2")); }, {"--decode-batch"});
  EXPECT_EQ(told.prompt_tokens, 7);
  EXPECT_EQ(told.new_tokens, 9);
}

TEST(Render, NeedsATemplateAndAConversation) {
  const auto options = parse_render({"--chat-template", "t.jinja", "--prompt", "x", "--apply-chat-template-kwargs",
                                     "{\"b\": 1, \"a\": false}", "--add-generation-prompt"});
  EXPECT_EQ(options.chat.kwargs.dump(), "{\"b\":1,\"a\":false}");
  EXPECT_TRUE(options.add_generation_prompt);
  expect_error<ConfigError>([] { parse_render({"--prompt", "x"}); }, {"--hf-checkpoint", "--chat-template"});
  expect_error<ConfigError>([] { parse_render({"--chat-template", "t"}); }, {"one of --prompt and --input", "neither"});
  expect_error<ConfigError>(
      [] {
        parse_render({"--chat-template", "t", "--prompt", "x", "--apply-chat-template-kwargs", "[1]"});
      },
      {"--apply-chat-template-kwargs", "[1]", "a JSON object"});
  expect_error<ConfigError>(
      [] {
        parse_render({"--chat-template", "t", "--prompt", "x", "--add-generation-prompt", "--continue-final-message"});
      },
      {"exclude each other"});
}

TEST(Inspect, TakesOnePath) {
  EXPECT_EQ(parse_inspect({"p"}), "p");
  expect_error<ConfigError>([] { parse_inspect({}); }, {"inspect needs a path"});
  expect_error<ConfigError>([] { parse_inspect({"p", "q"}); }, {"unexpected argument", "q"});
  expect_error<ConfigError>([] { parse_inspect({"p", "--json"}); }, {"unknown: --json"});
}

}  // namespace
}  // namespace lockstep::cli
