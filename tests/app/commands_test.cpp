// sft, score, generate, eval, bench, inspect, render.
#include <gtest/gtest.h>

#include <sstream>

#include "app/arguments.h"
#include "cli/command_line.h"
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

TEST(Sft, FlagsThatThisRunDoesNotReadAreNamed) {
  const auto notes = [](const std::string& more) { return parse_sft(sft_args(more)).notes; };
  const std::pair<const char*, const char*> kReaders[] = {{"--min-lr 1e-8", "--lr-decay-style cosine"},
                                                          {"--truncation-mode keep_end", "--max-seq-length 8"},
                                                          {"--rollout-seed 5", "--rollout-shuffle"}};
  for (const auto& [flag, reader] : kReaders) {
    const std::vector<std::string> alone = notes(flag);
    ASSERT_EQ(alone.size(), 1u) << flag;
    const std::string name = std::string(flag).substr(0, std::string(flag).find(' '));
    EXPECT_TRUE(alone[0].starts_with(name + ": not used without --")) << alone[0];
    EXPECT_TRUE(notes(std::string(flag) + " " + reader).empty()) << flag;
  }
}

TEST(Sft, Rules) {
  expect_error<ConfigError>([] { parse_sft({}); }, {"missing: --hf-checkpoint, --prompt-data"});
  expect_error<ConfigError>([] { parse_sft(words("--hf-checkpoint M --prompt-data d")); }, {"give --lora-rank"});
  expect_error<ConfigError>([] { parse_sft(words("--hf-checkpoint M --prompt-data d --lora-rank 4")); },
                            {"needs --target-modules"});
  sft_rejects("--lora-dropout 1", {"--lora-dropout", "below 1"});
  sft_rejects("--freeze-params-name-list a", {"LoRA excludes"});
  sft_rejects("--save-interval 2", {"needs --save"});
  sft_rejects("--lr-decay-style WSD", {"needs --lr-wsd-decay-iters"});
  sft_rejects("--lr-wsd-decay-iters 4", {"needs --lr-decay-style WSD"});
  sft_rejects("--eval-interval 4", {"--eval-interval needs --eval-prompt-data"});
  sft_rejects("--save-best --save s", {"--save-best needs --eval-interval"});
  sft_rejects("--save-best --eval-prompt-data e --eval-interval 2", {"--save-best needs --save"});
  sft_rejects("--early-stopping-patience 2", {"--early-stopping-patience needs --eval-interval"});
  sft_rejects("--loss-type ipo --simpo-gamma 1", {"--simpo-gamma needs --loss-type simpo"});
  const auto simpo = std::get<train::DpoLoss>(parse_dpo(sft_args("--loss-type simpo --simpo-gamma 1")).options.loss);
  EXPECT_EQ(simpo.kind, train::PreferenceKind::simpo);
  EXPECT_EQ(simpo.gamma, 1);
  EXPECT_FALSE(parse_dpo(sft_args("--loss-type orpo")).uses_reference);
  EXPECT_TRUE(parse_dpo(sft_args("--loss-type ipo")).uses_reference);
  const auto kto = parse_dpo(sft_args("--loss-type kto --dpo-beta 0.2 --desirable-weight 2 --ref-load R"));
  EXPECT_EQ(std::get<train::KtoLoss>(kto.options.loss).desirable_weight, 2);
  EXPECT_EQ(std::get<train::KtoLoss>(kto.options.loss).beta, 0.2f);
  EXPECT_EQ(kto.options.reference, "R");
  EXPECT_TRUE(kto.uses_reference);
  EXPECT_TRUE(parse_dpo(sft_args("--loss-type orpo --ref-load R")).options.reference.empty());
  sft_rejects("--undesirable-weight 2", {"--undesirable-weight needs --loss-type kto"});
  sft_rejects("--loss-type kto --global-batch-size 1", {"--global-batch-size", "at least 2"});
  sft_rejects("--loss-type kto --simpo-gamma 1", {"--simpo-gamma needs --loss-type simpo"});
  sft_rejects("--loss-type kto --loss-mask-type all", {"preference losses compare completions"});
  sft_rejects("--dpo-beta 0.2", {"--dpo-beta needs --loss-type dpo_loss"});
  sft_rejects("--loss-type dpo_loss --calculate-per-token-loss", {"mean over pairs"});
  sft_rejects("--loss-type dpo_loss --loss-mask-type qwen", {"preference losses compare completions", "qwen"});
  sft_rejects("--loss-type dpo_loss --truncation-mode keep_end", {"cut at their ends"});
  sft_rejects("--apply-chat-template-kwargs [1]", {"a JSON object"});
  sft_rejects("--max-bad-rows -1", {"--max-bad-rows", "0"});
}

TEST(Sft, LaunchScriptsOfSupervisedRuns) {
  const auto command = parse_sft(
      sft_args("--save s --loss-type sft_loss --rollout-function-path slime.rollout.sft_rollout.generate_rollout "
               "--disable-compute-advantages-and-returns --debug-train-only --rollout-batch-size 128 --colocate "
               "--num-layers 2"));
  EXPECT_EQ(command.notes.size(), 4u);
  EXPECT_EQ(command.options.rollout_batch_size, 128);
  EXPECT_EQ(command.shape.size(), 1u);
  sft_rejects("--loss-type policy_loss", {"not available yet: --loss-type policy_loss"});
  sft_rejects("--rollout-function-path my.own", {"Python is not run for: --rollout-function-path"});
  sft_rejects("--rollout-temperature 1", {"unknown: --rollout-temperature (a flag of `lockstep train`)"});
}

// slime's scripts/run-qwen3-4B-base-sft.sh, as far as it is about training.
constexpr const char* kSlimeSft =
    "--hf-checkpoint M --ref-load R --load L --save L --save-interval 1000 --rollout-function-path "
    "slime.rollout.sft_rollout.generate_rollout --prompt-data openhermes2_5.parquet --input-key messages "
    "--apply-chat-template --rollout-shuffle --num-epoch 3 --rollout-batch-size 128 --global-batch-size 128 "
    "--loss-type "
    "sft_loss --loss-mask-type qwen3 --calculate-per-token-loss --disable-compute-advantages-and-returns "
    "--debug-train-only --optimizer adam --lr 1e-5 --lr-decay-style cosine --min-lr 1e-6 --lr-warmup-fraction 0.1 "
    "--weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --use-dynamic-batch-size --max-tokens-per-gpu 9216 "
    "--lora-rank 8 --target-modules all-linear";

TEST(Sft, TrainAsksForIt) {
  EXPECT_TRUE(asks_for_sft(words(kSlimeSft)));
  EXPECT_TRUE(asks_for_sft(words("--loss-type=dpo_loss")));
  EXPECT_FALSE(asks_for_sft(words("--loss-type sft_loss --loss-type policy_loss")));
  EXPECT_FALSE(asks_for_sft(words("--loss-type")));
  const recipes::SftOptions o = parse_sft(words(kSlimeSft)).options;
  EXPECT_EQ(o.rows.messages_key, "messages");
  EXPECT_EQ(o.rows.loss_mask, recipes::LossMaskType::assistant);
  EXPECT_TRUE(std::holds_alternative<train::SftLoss>(o.loss));
  EXPECT_EQ(o.num_epoch, 3);
  EXPECT_EQ(o.training.global_batch_size, 128);
  EXPECT_EQ(o.rollout_batch_size, 128);
  EXPECT_EQ(o.training.max_tokens, 9216);
  EXPECT_TRUE(o.training.per_token_loss);
}

TEST(Sft, RolloutsAreCountedAsSlimeCountsThem) {
  const auto parsed = [](const std::string& more) { return parse_sft(sft_args("--save s " + more)).options; };
  const auto o = parsed(
      "--num-rollout 5 --rollout-batch-size 32 --global-batch-size 8 --save-interval 2 "
      "--eval-prompt-data e --eval-interval 3");
  EXPECT_EQ(o.num_steps, 20);
  EXPECT_EQ(o.save.save_interval, 8);
  EXPECT_EQ(o.eval_interval, 12);
  EXPECT_EQ(parsed("--num-rollout 5 --rollout-batch-size 32").training.global_batch_size, 32);
  EXPECT_EQ(parsed("--num-rollout 5 --rollout-batch-size 32").num_steps, 5);
  EXPECT_EQ(parsed("--num-rollout 5 --save-interval 2").num_steps, 5);  // without: optimizer steps
  EXPECT_EQ(parsed("--num-rollout 5 --save-interval 2").save.save_interval, 2);
  EXPECT_EQ(parsed("--train-iters 7 --rollout-batch-size 32 --global-batch-size 8").num_steps, 7);
  sft_rejects("--rollout-batch-size 32 --global-batch-size 5", {"does not divide", "a divisor of", "32"});
  sft_rejects("--num-rollout 5 --train-iters 7", {"exclude each other"});
}

TEST(Sft, EvaluationSchedulesAndPreferences) {
  const auto o = parse_sft(sft_args("--num-rollout 40 --lr-decay-style WSD --lr-wsd-decay-iters 8 --lr-wsd-decay-style "
                                    "minus_sqrt --loraplus-lr-ratio 16 --eval-prompt-data a x b y --eval-interval 5 "
                                    "--save s --save-best --early-stopping-patience 3 --early-stopping-threshold 0.01 "
                                    "--max-seq-length 512 --truncation-mode keep_end --loss-mask-type completion"))
                     .options;
  EXPECT_EQ(o.num_steps, 40);
  EXPECT_EQ(o.optimizer.schedule.style, train::DecayStyle::wsd);
  EXPECT_EQ(o.optimizer.schedule.wsd_style, train::WsdStyle::minus_sqrt);
  EXPECT_EQ(o.optimizer.wsd_decay_steps, 8);
  EXPECT_EQ(o.optimizer.loraplus_lr_ratio, 16);
  ASSERT_EQ(o.eval_sets.size(), 2u);
  EXPECT_EQ(o.eval_sets[1].path, "y");
  EXPECT_TRUE(o.save_best);
  EXPECT_EQ(o.patience, 3);
  EXPECT_EQ(o.threshold, 0.01);
  EXPECT_EQ(o.rows.max_length, 512);
  EXPECT_EQ(o.rows.truncation, recipes::TruncationMode::keep_end);
  EXPECT_EQ(o.rows.loss_mask, recipes::LossMaskType::completion);
  EXPECT_EQ(std::get<train::DpoLoss>(parse_dpo(sft_args()).options.loss).beta, 0.1f);
  EXPECT_EQ(std::get<train::DpoLoss>(parse_sft(sft_args("--loss-type dpo_loss --dpo-beta 0.5")).options.loss).beta,
            0.5f);
  EXPECT_NE(dpo_help().find("--loss-type NAME=dpo_loss"), std::string::npos);
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
  EXPECT_FALSE(plain.sampling.temperature || plain.sampling.top_p || plain.sampling.top_k || plain.sampling.min_p);
  EXPECT_EQ(plain.sampling.max_tokens, 256);
  const auto told =
      parse_generate(words("--hf-checkpoint M --input i --input-key q --temperature 0 --top-p 0.5 --top-k -1 "
                           "--min-p 0.1 --max-tokens 4 --seed 3 --n 2 --stop a b"));
  EXPECT_EQ(told.input, "i");
  EXPECT_EQ(told.input_key, "q");
  EXPECT_EQ(told.sampling.temperature, 0);
  EXPECT_EQ(told.sampling.top_p, 0.5f);
  EXPECT_EQ(told.sampling.top_k, -1);
  EXPECT_EQ(told.sampling.min_p, 0.1f);
  EXPECT_EQ(told.sampling.max_tokens, 4);
  EXPECT_EQ(told.sampling.seed, 3u);
  EXPECT_EQ(told.n, 2);
  EXPECT_EQ(told.sampling.stop, (std::vector<std::string>{"a", "b"}));
}

TEST(Generate, NeedsOnePrompt) {
  expect_error<ConfigError>([] { parse_generate(words("--hf-checkpoint M")); },
                            {"one of --prompt, --input and --interactive", "none"});
  expect_error<ConfigError>([] { parse_generate(words("--hf-checkpoint M --prompt a --input b")); }, {"more than one"});
}

TEST(Generate, FilesAndSampling) {
  const auto o = parse_generate(
      words("--hf-checkpoint M --input i --output o --overwrite --logprobs 5 --prompt-logprobs 0 --max-num-seqs 8 "
            "--max-bad-rows 3 --kv-cache-bytes 1000000 --repetition-penalty 1.2 --frequency-penalty -0.5 "
            "--presence-penalty 0.5 --min-tokens 2 --ignore-eos --stop-token-ids 7 8"));
  EXPECT_EQ(o.output, "o");
  EXPECT_TRUE(o.overwrite);
  EXPECT_EQ(o.top_logprobs, 5);
  EXPECT_EQ(o.prompt_logprobs, 0);
  EXPECT_EQ(o.max_sequences, 8);
  EXPECT_EQ(o.max_bad_rows, 3);
  EXPECT_EQ(o.kv_bytes, 1'000'000);
  EXPECT_EQ(o.sampling.repetition_penalty, 1.2f);
  EXPECT_EQ(o.sampling.frequency_penalty, -0.5f);
  EXPECT_EQ(o.sampling.presence_penalty, 0.5f);
  EXPECT_EQ(o.sampling.min_tokens, 2);
  EXPECT_TRUE(o.sampling.ignore_eos);
  EXPECT_EQ(o.sampling.stop_token_ids, (std::vector<int32_t>{7, 8}));
  const auto rejects = [](const std::string& more, std::initializer_list<const char*> parts) {
    SCOPED_TRACE(more);
    expect_error<ConfigError>([&] { parse_generate(words("--hf-checkpoint M " + more)); }, parts);
  };
  rejects("--input i --overwrite", {"--overwrite needs --output"});
  rejects("--prompt p --output o", {"--output needs --input"});
  rejects("--prompt p --logprobs 2", {"--logprobs needs --input"});
  rejects("--input i --logprobs 200", {"--logprobs", "128"});
  rejects("--input i --min-tokens 9 --max-tokens 8", {"--min-tokens is above --max-tokens", "at most 8"});
  rejects("--interactive --prompt p", {"more than one"});
  rejects("--interactive --n 2", {"--n has no meaning in a conversation"});
  rejects("--interactive --max-bad-rows 2", {"--max-bad-rows has no meaning"});
}

TEST(Generate, ConversationsHaveTheirOwnCommand) {
  const std::string more =
      " --lora-adapter-path A --temperature 0.7 --chat-template t --apply-chat-template-kwargs {\"a\":1}";
  const auto talk = parse_chat(words("--hf-checkpoint M" + more));
  const auto same = parse_generate(words("--interactive --hf-checkpoint M" + more));
  for (const auto& o : {talk, same}) {
    EXPECT_TRUE(o.interactive);
    EXPECT_EQ(o.adapter_path, "A");
    EXPECT_EQ(o.sampling.temperature, 0.7f);
    EXPECT_EQ(o.chat.template_file, "t");
    EXPECT_EQ(o.chat.kwargs["a"], 1);
  }
  expect_error<ConfigError>([] { parse_chat(words("--temperature 1")); }, {"missing: --hf-checkpoint"});
  expect_error<ConfigError>([] { parse_chat(words("--hf-checkpoint M --input i")); }, {"unknown: --input"});
}

TEST(Generate, HelpTeachesByExample) {
  const std::string help = generate_help(), talk = chat_help();
  for (const char* part :
       {"--output answers.jsonl", "--interactive", "FILE.run.json", "--repetition-penalty X", "--overwrite"})
    EXPECT_NE(help.find(part), std::string::npos) << part;
  for (const char* part :
       {"lockstep chat --hf-checkpoint DIR", "/adapter DIR", "Ctrl-C stops an answer", "--temperature T"})
    EXPECT_NE(talk.find(part), std::string::npos) << part;
  EXPECT_EQ(talk.find("--input"), std::string::npos);
}

TEST(Eval, FlagsAndRules) {
  const auto plain = parse_eval(words("--hf-checkpoint M --prompt-data d"));
  EXPECT_EQ(plain.temperatures, (std::vector<float>{0, 1}));
  const auto told =
      parse_eval(words("--hf-checkpoint M --prompt-data d --temperature 0.5 --rm-type exact --n 3 --num-examples 0"));
  EXPECT_EQ(told.temperatures, std::vector<float>{0.5f});
  EXPECT_EQ(told.reward.choices.at(0).rule.type, rl::RewardType::exact);
  EXPECT_EQ(told.n, 3);
  EXPECT_EQ(told.num_examples, 0);
  expect_error<ConfigError>([] { parse_eval(words("--hf-checkpoint M")); }, {"missing: --prompt-data"});
  expect_error<ConfigError>([] { parse_eval(words("--hf-checkpoint M --prompt-data d --rm-type ifbench")); },
                            {"--rm-type ifbench", "not graded here"});
  EXPECT_EQ(plain.reward.choices.at(0).rule.type, rl::RewardType::number);
}

TEST(Reward, FlagsAndRules) {
  const auto plain = parse_reward(words("--rm-type math --input a.jsonl"));
  EXPECT_EQ(plain.reward.choices.at(0).rule.type, rl::RewardType::math);
  EXPECT_EQ(plain.reward.choices.at(0).rule.math_tolerance, 0);
  EXPECT_EQ(plain.response_key, "completion");
  EXPECT_EQ(plain.label_key, "label");
  EXPECT_EQ(plain.output, "");
  const auto told = parse_reward(words(
      "--rm-type math --math-tolerance 1e-4 --input a --output b --response-key r --label-key l --max-bad-rows 3"));
  EXPECT_EQ(told.reward.choices.at(0).rule.math_tolerance, 1e-4);
  EXPECT_EQ(told.output, "b");
  EXPECT_EQ(told.response_key, "r");
  EXPECT_EQ(told.label_key, "l");
  EXPECT_EQ(told.max_bad_rows, 3);
  const auto rejected = [](const std::string& args, std::initializer_list<const char*> parts) {
    expect_error<ConfigError>([&] { parse_reward(words(args)); }, parts);
  };
  rejected("--input a", {"missing: --rm-type"});
  rejected("--rm-type math", {"missing: --input"});
  rejected("--rm-type foo --input a", {"bad value of --rm-type", "foo", "math, deepscaler, dapo"});
  for (const char* refused : {"ifbench", "gemma_math", "boxed_math", "boxed_deepscaler"})
    rejected(std::string("--rm-type ") + refused + " --input a", {refused, "is not graded here", "try"});
  for (const char* known : {"deepscaler", "dapo", "f1", "gpqa", "gsm8k", "boxed_f1", "random", "deterministic_random"})
    EXPECT_EQ(parse_reward(words(std::string("--input a --rm-type ") + known)).reward.name(), known);
  rejected("--rm-type soft_overlong --input a", {"--overlong-cache"});
  const auto mixed = parse_reward(words("--rm-type math:0.9,format:0.1 --math-tolerance 0.01 --input a")).reward;
  EXPECT_EQ(mixed.name(), "0.9 math + 0.1 format");
  EXPECT_EQ(mixed.choices.at(0).rule.math_tolerance, 0.01);
  EXPECT_EQ(mixed.only_rule(), nullptr);
  const auto python =
      parse_reward(words("--custom-rm-path a.b --group-rm --reward-key score --reward-timeout 2.5 --input a"));
  EXPECT_EQ(python.reward.name(), "custom");
  EXPECT_EQ(python.reward.timeout, std::chrono::milliseconds(2500));
  EXPECT_TRUE(python.reward.groups);
  rejected("--rm-type math:x --input a", {"--rm-type", "x"});
  rejected("--rm-type math,math:2 --input a", {"named twice"});
  rejected("--rm-type command --input a", {"--reward-command"});
  rejected("--rm-type judge --rm-url http://a:1 --input a", {"--judge-model"});
  rejected("--rm-type remote_rm --input a", {"--rm-url"});
  rejected("--rm-type remote_rm,sandbox_fusion --rm-url http://a:1 --input a", {"one service"});
  rejected("--rm-type math --group-rm --input a", {"--group-rm needs"});
  rejected("--rm-type math --reward-key x --input a", {"--reward-key needs"});
  EXPECT_EQ(parse_reward(words("--rm-type dapo --reward-key score --input a")).reward.name(), "dapo");
  rejected("--rm-type dapo --reward-key pred --input a", {"no such part", "score"});
  rejected("--rm-type length --input a", {"--length-key"});
  rejected("--rm-type math --overlong-cache 5 --input a", {"--overlong-cache needs --rm-type soft_overlong"});
  EXPECT_NE(parse_reward(words("--rm-type gpqa --input a")).notes.at(0).find("slime"), std::string::npos);
  rejected("--rm-type number --math-tolerance 0.1 --input a", {"--math-tolerance needs --rm-type math", "number"});
  rejected("--rm-type math --math-tolerance 1 --input a", {"--math-tolerance", "below 1"});
}

TEST(Reward, HelpTeachesByExample) {
  const std::string help = reward_help();
  for (const char* part : {"--rm-type NAME", "--response-key KEY=completion", "--label-key KEY=label", "\\boxed{}",
                           "lockstep reward --rm-type math --input answers.jsonl", "docs/rewards.md"})
    EXPECT_NE(help.find(part), std::string::npos) << part << "\n" << help;
}

TEST(Bench, Flags) {
  const auto plain = parse_bench(words("--hf-checkpoint M"));
  EXPECT_TRUE(plain.decode_batches.empty());
  EXPECT_EQ(plain.batch_size, std::nullopt);
  EXPECT_EQ(plain.base.load_format, "auto");
  const auto told = parse_bench(
      words("--hf-checkpoint M --batch-size 4 --seq-length 128 --lora-rank 8 --json f --decode-batch 2,3 5 "
            "--prompt-length 7 --new-tokens 9 --n-samples-per-prompt 3 --load-format dummy --only train,decode"));
  EXPECT_EQ(told.batch_size, 4);
  EXPECT_EQ(told.seq_length, 128);
  EXPECT_EQ(told.lora_rank, 8);
  EXPECT_EQ(told.json, "f");
  EXPECT_EQ(told.decode_batches, (std::vector<int64_t>{2, 3, 5}));
  EXPECT_EQ(told.base.load_format, "dummy");
  EXPECT_EQ(told.parts, (std::vector<std::string>{"train", "decode"}));
  expect_error<ConfigError>([] { parse_bench(words("--hf-checkpoint M --only train,dcode")); }, {"dcode", "grpo"});
  expect_error<ConfigError>([] { parse_bench(words("--hf-checkpoint M --decode-batch 1,,2")); }, {"--decode-batch"});
  EXPECT_EQ(told.prompt_tokens, 7);
  EXPECT_EQ(told.new_tokens, 9);
  EXPECT_EQ(told.samples_per_prompt, 3);
  EXPECT_EQ(plain.samples_per_prompt, 1);
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

TEST(Render, TokensAreThoseOfTrainingRows) {
  const auto options = parse_render(words("--hf-checkpoint M --input f --tokens --loss-mask-type qwen3"));
  EXPECT_TRUE(options.tokens);
  EXPECT_EQ(options.loss_mask, recipes::LossMaskType::assistant);
  expect_error<ConfigError>([] { parse_render(words("--chat-template t --input f --tokens")); },
                            {"--tokens needs --hf-checkpoint"});
  expect_error<ConfigError>([] { parse_render(words("--hf-checkpoint M --prompt x --tokens")); },
                            {"--tokens needs --input"});
  expect_error<ConfigError>([] { parse_render(words("--hf-checkpoint M --input f --tokens --tools t")); },
                            {"--tokens excludes --tools"});
  expect_error<ConfigError>([] { parse_render(words("--hf-checkpoint M --input f --loss-mask-type all")); },
                            {"--loss-mask-type needs --tokens"});
}

TEST(Inspect, TakesOnePath) {
  EXPECT_EQ(parse_inspect({"p"}).path, "p");
  EXPECT_EQ(parse_inspect({"p", "--rows", "7"}).num_rows, 7);
  expect_error<ConfigError>([] { parse_inspect({}); }, {"inspect needs a path"});
  expect_error<ConfigError>([] { parse_inspect({"p", "q"}); }, {"unexpected argument", "q"});
  expect_error<ConfigError>([] { parse_inspect({"p", "--json"}); }, {"unknown: --json"});
}

TEST(Export, EveryFormatNeedsWhatItIsMadeOf) {
  const commands::ExportOptions merged =
      parse_export(words("--format gguf --hf-checkpoint M --lora-adapter-path A --output F --dtype q8_0 --threads 3"));
  EXPECT_EQ(merged.format, commands::ExportFormat::gguf);
  EXPECT_EQ(merged.type, commands::ExportType::q8_0);
  EXPECT_EQ(merged.base.hf_checkpoint, "M");
  EXPECT_EQ(merged.adapter_path, "A");
  EXPECT_EQ(merged.output, "F");
  EXPECT_EQ(merged.base.stream.threads, 3);
  EXPECT_EQ(parse_export(words("--format gguf --hf-checkpoint M --output F")).type, commands::ExportType::automatic);
  EXPECT_EQ(parse_export(words("--format peft --lora-adapter-path A --output D --dtype bf16")).type,
            commands::ExportType::bf16);
  EXPECT_EQ(parse_export(words("--format gguf-lora --hf-checkpoint M --lora-adapter-path A --output F")).format,
            commands::ExportFormat::gguf_lora);
  const auto refused = [](const std::string& args, std::initializer_list<const char*> parts) {
    expect_error<ConfigError>([&] { parse_export(words(args)); }, parts);
  };
  refused("--output F", {"--format"});
  refused("--format gguf --output F", {"--hf-checkpoint"});
  refused("--format gguf-lora --hf-checkpoint M --output F", {"--lora-adapter-path"});
  refused("--format peft --output F", {"--lora-adapter-path"});
  refused("--format peft --lora-adapter-path A --output F --dtype q8_0", {"--dtype", "q8_0"});
  refused("--format onnx --output F", {"--format", "onnx"});
  EXPECT_TRUE(parse_export(words("--format peft --lora-adapter-path A --output D --overwrite")).overwrite);
  refused("--format gguf --hf-checkpoint M --output F --overwrite", {"--overwrite", "peft"});
  refused("--format gguf --hf-checkpoint M --output F --dtype q4_0", {"--dtype", "q4_0"});
}

TEST(Commands, AnUnknownOneIsAnsweredWithAll) {
  const auto refused = [](const std::string& name, std::initializer_list<const char*> parts) {
    std::ostringstream out, err;
    expect_error<ConfigError>([&] { run({name}, {.out = &out, .err = &err}); }, parts);
  };
  refused("frobnicate", {"unknown command: frobnicate", "train, sft, dpo", "launch, bench", "lockstep --help"});
  refused("generat", {"unknown command: generat", "train, sft, dpo", "try:    lockstep generate"});
  refused("tokenise", {"try:    lockstep tokenize"});
}

}  // namespace
}  // namespace lockstep::cli
