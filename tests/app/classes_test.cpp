// argparse's rules and the four classes of flags.
#include <gtest/gtest.h>

#include "app/arguments.h"
#include "cli/classify.h"
#include "cli/parse.h"
#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep::cli {
namespace {

using testing::expect_error;

TEST(Argparse, LastOfARepeatedFlagWins) {
  EXPECT_EQ(train("--lr 1e-3 --lr 2e-3").optimizer.schedule.lr, 2e-3);
  EXPECT_EQ(train("--lr 1e-3 --lr=2e-3").optimizer.schedule.lr, 2e-3);
  EXPECT_EQ(train("--rollout-stop a b --rollout-stop c").sampling.stop, std::vector<std::string>{"c"});
  EXPECT_TRUE(train("--use-kl-loss --use-kl-loss").use_kl_loss);
  EXPECT_EQ(parse_train(train_args("--megatron-to-hf-mode raw --megatron-to-hf-mode bridge")).notes.size(),
            parse_train(train_args("--megatron-to-hf-mode bridge")).notes.size());
}

TEST(Argparse, ValuesMayBeNegativeOrScientific) {
  EXPECT_EQ(train("--eval-top-k -1").eval_sampling.top_k, -1);
  EXPECT_EQ(train("--rollout-top-k -1").sampling.top_k, -1);
  EXPECT_EQ(train("--entropy-coef -1e-3").loss.entropy_coef, -1e-3f);
  EXPECT_EQ(train("--entropy-coef=-.5").loss.entropy_coef, -.5f);
  EXPECT_EQ(train("--eps-clip 4e-4 --eps-clip-high +2e-4").loss.clip_high, 2e-4f);
}

TEST(Argparse, AFlagTakesItsValuesAndNoMore) {
  EXPECT_EQ(train("--rollout-stop ### ; --lr 1e-4").sampling.stop, (std::vector<std::string>{"###", ";"}));
  EXPECT_EQ(train("--rollout-stop-token-ids 151645 7").sampling.stop_token_ids, (std::vector<int32_t>{151645, 7}));
  EXPECT_EQ(train("--rollout-stop=--x").sampling.stop, std::vector<std::string>{"--x"});
  rejects("--save --lr 1e-4", {"--save needs a value", "--save=--value"});
  rejects("--save a b", {"unexpected argument", "b"});
  rejects("--colocate true", {"unexpected argument", "true"});
  rejects("--colocate=true", {"--colocate takes no value"});
  rejects("--rollout-stop=a b", {"unexpected argument", "b"});
  rejects("--num-layers 2 3", {"unexpected argument", "3"});
  rejects("--lr=", {"bad value of --lr"});
  expect_error<ConfigError>([] { parse_train({"stray"}); }, {"unexpected argument", "stray"});
}

TEST(Argparse, BracketsAndSpacesStayAsTheyAre) {
  Values args = train_args("--rollout-stop");
  args.insert(args.end(), {"[a,b]", "\"q\" x", "%"});
  EXPECT_EQ(parse_train(args).options.sampling.stop, (std::vector<std::string>{"[a,b]", "\"q\" x", "%"}));
}

TEST(Numbers, AreReadWholeAndInRange) {
  for (const char* bad : {"1e-5x", "nan", "inf", "-inf", "-1e-5", "1e400", "", "0x1p3", "1,5", "2"})
    expect_error<ConfigError>(
        [&] {
          Values args = train_args("--lr");
          args.push_back(bad);
          parse_train(args);
        },
        {"--lr", "a number from 0 to 1"});
  for (const char* bad : {"0", "-1", "1e3", "8.0", "99999999999999999999", "2000000", "8x", "0x8"})
    rejects(std::string("--rollout-batch-size ") + bad,
            {"--rollout-batch-size", bad, "a whole number from 1 to 1000000"});
  EXPECT_EQ(train("--rollout-batch-size 010 --global-batch-size 5").rollout_batch_size, 10);  // no octal
  rejects("--adam-beta1 1", {"--adam-beta1", "from 0 to below 1"});
  rejects("--adam-eps 0", {"--adam-eps", "above 0"});
  rejects("--threads -1", {"--threads"});
  rejects("--threads 5000", {"--threads", "5000", std::to_string(max_threads()).c_str()});
  rejects("--lora-rank 100000", {"--lora-rank", "8192"});
  rejects("--rollout-stop-token-ids 1 -3", {"--rollout-stop-token-ids", "-3"});
}

TEST(Compatible, EachFlagPrintsOneLine) {
  const auto notes =
      parse_train(train_args("--save s --n-samples-per-prompt 2 --sequence-parallel --sequence-parallel --wandb-key "
                             "secret --without wandb-key --vllm-cuda-graph-sizes 1 2 4 "
                             "--sglang-disable-cuda-graph --train-backend megatron"))
          .notes;
  ASSERT_EQ(notes.size(), 5u);
  EXPECT_EQ(notes[0],
            "--sequence-parallel: each rank has the whole model on one device; --actor-num-gpus-per-node says how many "
            "ranks there are");
  EXPECT_EQ(notes[1],
            "--wandb-key: left out (--without): nothing is sent: `wandb sync` sends what --use-wandb writes, with its "
            "own settings");  // without the key
}

TEST(Compatible, ValuesThatContradictAreErrors) {
  rejects("--optimizer sgd", {"--optimizer", "sgd", "adam"});
  rejects("--megatron-to-hf-mode raw", {"--megatron-to-hf-mode raw", "bridge", "drop the flag"});
  rejects("--attention-dropout 0.1", {"--attention-dropout", "0.1"});
  rejects("--hidden-dropout 0.1", {"--hidden-dropout", "0.1"});
  EXPECT_NO_THROW(train("--attention-dropout 0.00 --hidden-dropout 0"));
  rejects("--vllm-max-lora-rank 4", {"--vllm-max-lora-rank", "4", "at least --lora-rank 8"});
  rejects("--sglang-max-lora-rank 4", {"--sglang-max-lora-rank"});
  EXPECT_NO_THROW(train("--vllm-max-lora-rank 8"));
  rejects("--only-train-params-name-list experts", {"LoRA excludes --only-train-params-name-list"});
  rejects("--freeze-params-name-list a b", {"LoRA excludes --freeze-params-name-list"});
  rejects("--use-dynamic-batch-size", {"--use-dynamic-batch-size needs --max-tokens-per-gpu"});
}

TEST(NotAvailableYet, OneErrorNamesAll) {
  rejects(
      "--use-critic --session-server --custom-generate-function-path a.b --kv-lora-rank 8 "
      "--loss-type custom_loss --sglang-quantization "
      "fp8",
      {"not available yet: --use-critic, --session-server, --kv-lora-rank, "
       "--loss-type custom_loss, "
       "--sglang-quantization fp8; Python is not run for: "
       "--custom-generate-function-path"});
  rejects("--custom-reward-post-process-path a.b --rollout-sample-filter-path c.d",
          {"Python is not run for: --custom-reward-post-process-path, --rollout-sample-filter-path",
           "--custom-rm-path, the one function of Python that is run"});
}

TEST(NotAvailableYet, IsNotWhatNobodyKnows) {
  rejects("--advantage-estimator foo", {"bad value of --advantage-estimator", "foo"});
  rejects("--rm-type foo", {"bad value of --rm-type", "foo", "math, deepscaler, dapo"});
  rejects("--device tpu", {"bad value of --device"});
  rejects("--sglang-quantization int3", {"--sglang-quantization int3", "none (not available yet: awq,", "w8a8_int8"});
  rejects("--loss-type foo_loss", {"--loss-type foo_loss", "policy_loss (not available yet: custom_loss)"});
  rejects("--num-critic-only-steps few", {"--num-critic-only-steps", "few"});
  rejects("--attention-backend flush", {"--attention-backend flush", "auto or flash or fused or unfused or local"});
  rejects("--update-weight-mode some", {"full or delta"});
  rejects("--lambd x", {"--lambd", "x"});
}

TEST(Unknown, IsAnErrorWithTheNearestName) {
  rejects("--lora-rnak 8", {"unknown: --lora-rnak (did you mean --lora-rank?)"});
  rejects("--num-rollouts 3 --colocated --zzzzzzzzzzzz 1 2",
          {"unknown: --num-rollouts (did you mean --num-rollout?), --colocated (did you mean --colocate?), "
           "--zzzzzzzzzzzz"});
  rejects("--lr1 3 --use-critic", {"unknown: --lr1", "not available yet: --use-critic"});
  rejects("--num-roll 3", {"unknown: --num-roll (did you mean --num-rollout?)"});  // no abbreviations
}

TEST(Unknown, TheNearestNameIsAlwaysGiven) {
  rejects("--x 1", {"unknown: --x (did you mean --"});
  rejects("--something-that-nobody-knows", {"(did you mean --"});
  expect_error<ConfigError>([] { parse_inspect({"p", "--json"}); }, {"unknown: --json (did you mean --help?)"});
}

TEST(Unknown, NamesOfTransformersAreTold) {
  rejects("--learning-rate 1", {"unknown: --learning-rate (here it is called --lr)"});
  rejects("--num_generations 8", {"unknown: --num_generations (here it is called --n-samples-per-prompt)"});
  rejects("--max-length 8", {"unknown: --max-length (did you mean --"});  // RL has no --max-seq-length
}

TEST(Unknown, TyposOfFlagsWithoutEffect) {
  const std::pair<const char*, const char*> cases[] = {
      {"--offload-trian", "--offload-train"},
      {"--no-offload-rolout", "--no-offload-rollout"},
      {"--overlap-grad-reducee", "--overlap-grad-reduce"},
      {"--check-weight-update-equals", "--check-weight-update-equal"},
      {"--update-weight-bufer-size", "--update-weight-buffer-size"},
      {"--vllm-max-num-seq", "--vllm-max-num-seqs"},
      {"--sglang-mem-fraction-statik", "--sglang-mem-fraction-static"},
  };
  for (const auto& [typo, name] : cases)
    rejects(std::string(typo) + " 3", {("unknown: " + std::string(typo) + " (did you mean " + name + "?)").c_str()});
  rejects("--vllm-nonsense 3", {"unknown: --vllm-nonsense (did you mean --vllm-"});
  rejects("--no-vllm-nonsense", {"unknown: --no-vllm-nonsense"});
  rejects("--no-sglang-", {"unknown: --no-sglang-"});
}

TEST(Compatible, EnginesArguments) {
  const auto notes = [](const std::string& more) {
    return parse_train(train_args("--save s --n-samples-per-prompt 2 " + more)).notes;
  };
  for (const char* flags :
       {"--vllm-gpu-memory-utilization 0.8", "--vllm-enforce-eager", "--no-vllm-enable-prefix-caching",
        "--sglang-cuda-graph-bs 1 2 4", "--no-sglang-lora-use-virtual-experts"}) {
    ASSERT_EQ(notes(flags).size(), 1u) << flags;
    EXPECT_NE(notes(flags)[0].find("an engine setting"), std::string::npos) << flags;
  }
  rejects("--vllm-hf-overrides {}", {"not available yet: --vllm-hf-overrides"});
  // Each engine has its own.
  rejects("--sglang-enforce-eager", {"unknown: --sglang-enforce-eager (did you mean --vllm-enforce-eager?)"});
  rejects("--vllm-mem-fraction-static 0.4", {"unknown: --vllm-mem-fraction-static"});
  rejects("--sglang-max-model-len 4096", {"unknown: --sglang-max-model-len"});
  rejects("--vllm-enforce-eager yes", {"unexpected argument", "yes"});
  rejects("--no-vllm-block-size", {"unknown: --no-vllm-block-size"});
  rejects("--no-sglang-enable-eplb", {"unknown: --no-sglang-enable-eplb"});
}

}  // namespace
}  // namespace lockstep::cli
