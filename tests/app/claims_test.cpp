// What launch scripts claim about the engine's results, layouts and reports, and what becomes of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "app/arguments.h"
#include "cli/command_line.h"
#include "core/fs.h"
#include "core/json.h"

namespace lockstep::cli {
namespace {

using testing::expect_error;
using testing::TempDirectory;
using Kind = recipes::LaunchClaim::Kind;

const std::string kArith = LOCKSTEP_SOURCE_DIR "/models/arith";

// Accepted with one line.
void agrees(const std::string& flags) {
  SCOPED_TRACE(flags);
  const auto notes = parse_train(train_args("--n-samples-per-prompt 2 " + flags)).notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(notes[0].starts_with(flags.substr(0, flags.find(' ')) + ": ")) << notes[0];
}

TEST(Claims, SeedOfSampling) {
  agrees("--vllm-seed 42");
  agrees("--sglang-random-seed 7 --rollout-seed 7");
  rejects("--vllm-seed 7", {"drawn with another seed", "--vllm-seed", "7", "--rollout-seed 42"});
  rejects("--sglang-random-seed x", {"--sglang-random-seed", "a whole number"});
}

TEST(Claims, AContextIsApplied) {
  for (const char* flag : {"--vllm-max-model-len", "--sglang-context-length", "--rollout-max-context-len"}) {
    agrees(std::string(flag) + " 100");
    const auto options = train(std::string(flag) + " 100");
    EXPECT_EQ(options.sampling.max_context, 100);
    EXPECT_EQ(options.eval_sampling.max_context, 100);
    const auto claims = parse_train(train_args(std::string(flag) + " 100")).claims;
    ASSERT_EQ(claims.size(), 1u);  // config.json says whether it is too long
    EXPECT_EQ(claims[0].kind, Kind::context);
  }
  EXPECT_EQ(train("--sglang-context-length 100 --rollout-max-context-len 90").sampling.max_context, 90);
  EXPECT_EQ(train("").sampling.max_context, 0);
  rejects("--sglang-context-length 100 --rollout-max-prompt-len 100", {"leaves no room", "--rollout-max-prompt-len"});
}

TEST(Claims, SamplingFields) {
  for (const std::string flag : {"--vllm-override-generation-config ", "--sglang-preferred-sampling-params "}) {
    agrees(flag + R"({"temperature":1.0,"top_p":1,"top_k":0,"max_new_tokens":256,"repetition_penalty":null})");
    rejects(flag + R"({"temperature":0.7})", {"sampled otherwise", "\"temperature\": 1"});
    rejects(flag + R"({"repetition_penalty":1.1})", {"sampled otherwise"});
    rejects(flag + R"({"stop":"x"})", {"sampled otherwise"});
    rejects(flag + R"({"typical_p":0.5})", {"typical_p is no sampling field"});
    rejects(flag + "0.7", {"a JSON object"});
  }
  agrees(
      R"(--vllm-override-generation-config {"temperature":0.7,"stop":"x"} --rollout-temperature 0.7 --rollout-stop x)");
}

TEST(Claims, KindOfLogprobs) {
  agrees("--vllm-logprobs-mode raw_logprobs");
  agrees("--vllm-logprobs-mode processed_logprobs --rollout-temperature 0.7");
  rejects("--vllm-logprobs-mode raw_logprobs --rollout-temperature 0.7", {"logits / --rollout-temperature"});
  rejects("--vllm-logprobs-mode processed_logprobs --rollout-top-k 5", {"before --rollout-top-p"});
  rejects("--vllm-logprobs-mode raw_logits", {"not logits"});
}

TEST(Claims, AdaptersOfTheEngine) {
  agrees("--vllm-lora-modules mine=dir/a --lora-adapter-path dir/a");
  agrees(R"(--sglang-lora-paths {"lora_name":"x","lora_path":"dir/a"} --lora-adapter-path dir/a)");
  rejects("--sglang-lora-paths x=dir/b --lora-adapter-path dir/a", {"adapter that is trained", "dir/a"});
  rejects("--vllm-lora-modules mine=dir/a", {"no other adapter"});
  agrees("--vllm-max-lora-rank 8");
  rejects("--sglang-max-lora-rank 4", {"at least --lora-rank 8"});
  agrees("--sglang-lora-target-modules all");
  agrees("--sglang-lora-target-modules q_proj v_proj o_proj --target-modules q_proj,v_proj --lora-type canonical_lora");
  rejects("--sglang-lora-target-modules q_proj --target-modules q_proj,v_proj", {"refuse modules", "q_proj v_proj"});
  rejects("--sglang-lora-target-modules q_proj", {"all, or --target-modules all-linear"});
}

// What the command line leaves out is that of the directory the adapter starts from.
TEST(Claims, TheAdapterToStartFromHasItsOwnRankAndModules) {
  const std::string start =
      "--hf-checkpoint M --prompt-data d.jsonl --label-key label --rm-type number --rollout-batch-size 8 --num-rollout "
      "3 "
      "--n-samples-per-prompt 2 --lora-adapter-path " LOCKSTEP_SOURCE_DIR "/tests/golden/llama3/adapter ";
  const auto parsed = [&](const std::string& flags) { return parse_train(words(start + flags)); };
  EXPECT_EQ(parsed("--vllm-max-lora-rank 4").notes.size(), 1u);
  expect_error<ConfigError>([&] { parsed("--vllm-max-lora-rank 3"); },
                            {"--vllm-max-lora-rank", "at least --lora-rank 4"});
  EXPECT_EQ(parsed("--sglang-lora-target-modules q_proj k_proj v_proj o_proj gate_proj up_proj down_proj").notes.size(),
            1u);
  expect_error<ConfigError>([&] { parsed("--sglang-lora-target-modules q_proj"); }, {"refuse modules", "down_proj"});
}

TEST(Claims, ChatTemplate) {
  agrees("--sglang-chat-template t.jinja --chat-template t.jinja");
  rejects("--vllm-chat-template t.jinja", {"another chat template", "the model directory's"});
}

TEST(Claims, OtherEngineFlagsThatDecideResults) {
  agrees("--vllm-generation-config vllm");
  rejects("--vllm-generation-config auto", {"--vllm-generation-config auto", "vllm", "by the flags alone"});
  agrees("--sglang-revision main");
  rejects("--vllm-revision v2", {"--vllm-revision v2", "main"});
  rejects("--sglang-experts-shared-outer-loras", {"not available yet: --sglang-experts-shared-outer-loras"});
  rejects("--experts-shared-outer-loras", {"not available yet: --experts-shared-outer-loras"});
  rejects("--vllm-kv-cache-dtype fp8", {"not available yet: --vllm-kv-cache-dtype fp8"});
  rejects("--sglang-quantization fp8", {"not available yet: --sglang-quantization fp8"});
}

// What config.json and the device decide, as the command finds it.
void refuses(const std::string& model, const std::string& flags, std::initializer_list<const char*> parts) {
  SCOPED_TRACE(flags);
  std::ostringstream out, err;
  Values args = train_args("--device cpu --dry-run " + flags);
  args.insert(args.begin(), "train");
  args.insert(args.end(), {"--hf-checkpoint", model});
  if (parts.size() == 0)
    EXPECT_EQ(run(args, {.out = &out, .err = &err}), 0);
  else
    expect_error<ConfigError>([&] { run(args, {.out = &out, .err = &err}); }, parts);
}

TEST(Claims, NumberTypesModelsAndDevices) {
  refuses(kArith, "--bf16 --sglang-dtype auto --vllm-dtype float32 --vllm-kv-cache-dtype auto", {});
  refuses(kArith, "--sglang-enable-fp32-lm-head --vllm-lora-dtype float32 --sglang-device cpu", {});
  refuses(kArith, "--fp16", {"--fp16", "float16", "on the CPU", "auto, bfloat16 or float32"});
  refuses(kArith, "--sglang-dtype half", {"--sglang-dtype", "half"});
  refuses(kArith, "--sglang-kv-cache-dtype bf16", {"--sglang-kv-cache-dtype", "keys and values", "float32"});
  refuses(kArith, "--vllm-lora-dtype bfloat16", {"--vllm-lora-dtype", "adapters"});
  refuses(kArith, "--sglang-device cuda", {"--sglang-device", "share one device", "cpu"});
  refuses(kArith, "--vllm-model " + kArith + "/ --vllm-tokenizer " + kArith, {});
  refuses(kArith, "--sglang-tokenizer-path /elsewhere", {"--sglang-tokenizer-path", "/elsewhere", "another model"});
  refuses(kArith, "--vllm-max-model-len 512", {});
  refuses(kArith, "--vllm-max-model-len 513",
          {"longer than the model's context", "--vllm-max-model-len", "at most 512"});
  // The file's weights are the yardstick, not what is computed.
  const TempDirectory dir;
  Json config = read_json(kArith + "/config.json");
  config.erase("dtype");
  config["torch_dtype"] = "float32";
  dir.write("config.json", config.dump());
  refuses(dir.path().string(), "--bf16", {"--bf16", "auto or float32"});
}

TEST(Claims, SupervisedTrainingHasNoEngine) {
  const auto command = parse_sft(sft_args("--sglang-context-length 4 --vllm-seed 7 --sglang-tp-size 8 --bf16"));
  ASSERT_EQ(command.claims.size(), 1u);
  EXPECT_EQ(command.claims[0].flag, "--bf16");
  for (const char* flag : {"--sglang-context-length", "--vllm-seed", "--sglang-tp-size"})
    EXPECT_EQ(std::ranges::count(command.notes, std::string(flag) + ": supervised training starts no engine"), 1)
        << flag;
}

TEST(Claims, Serve) {
  const auto claims = parse_serve(words("--hf-checkpoint M --dtype half --lora-dtype auto --max-model-len 99")).claims;
  ASSERT_EQ(claims.size(), 3u);
  EXPECT_EQ(claims[0].kind, Kind::weight_type);
  EXPECT_EQ(claims[1].kind, Kind::adapter_type);
  EXPECT_EQ(claims[2].kind, Kind::context);
  std::ostringstream out, err;
  for (const std::string flags : {"--dtype half", "--dtype int8", "--lora-dtype bfloat16", "--max-model-len 513"})
    expect_error<ConfigError>(
        [&] { run(words("serve --device cpu --hf-checkpoint " + kArith + " " + flags), {.out = &out, .err = &err}); },
        {flags.substr(0, flags.find(' ')).c_str(), "wanted"});
  EXPECT_EQ(parse_serve(words("--hf-checkpoint M --seed 9")).seed, 9u);
  expect_error<ConfigError>([] { parse_serve(words("--hf-checkpoint M --tensor-parallel-size 2")); },
                            {"not available yet: --tensor-parallel-size 2", "--without tensor-parallel-size"});
  EXPECT_NO_THROW(parse_serve(words("--hf-checkpoint M --tensor-parallel-size 2 --without tensor-parallel-size")));
}

TEST(Layouts, OneDeviceIsWhatRuns) {
  for (const char* flags :
       {"--rollout-num-gpus-per-engine 1", "--tensor-model-parallel-size 1", "--context-parallel-size 1",
        "--sglang-tp-size 1", "--vllm-data-parallel-size 1", "--sglang-disaggregation-mode null"}) {
    agrees(flags);
    EXPECT_NO_THROW(train(std::string("--colocate ") + flags)) << flags;
  }
}

TEST(Layouts, LargerOnesAreNotAvailableYet) {
  for (const std::string flag :
       {"--rollout-num-gpus-per-engine", "--tensor-model-parallel-size", "--context-parallel-size",
        "--pipeline-model-parallel-size", "--decoder-last-pipeline-num-layers", "--expert-model-parallel-size",
        "--sglang-ep-size", "--vllm-tensor-parallel-size"}) {
    rejects("--colocate " + flag + " 2",
            {("not available yet: " + flag + " 2").c_str(), ("--without " + flag.substr(2)).c_str()});
    EXPECT_NO_THROW(train(flag + " 2 --without " + flag.substr(2)));
  }
  rejects("--tensor-model-parallel-size 1.5", {"--tensor-model-parallel-size 1.5"});
}

TEST(Reports, AreNotAvailableYet) {
  for (const std::string flag : {"--use-swanlab", "--use-mlflow", "--use-prometheus", "--prometheus-port 1",
                                 "--use-miles-dashboard", "--sglang-enable-metrics", "--vllm-otlp-traces-endpoint x"}) {
    const std::string name = flag.substr(2, flag.find(' ') - 2);
    rejects(flag, {("not available yet: --" + name).c_str(), ("--without " + name).c_str()});
    EXPECT_NO_THROW(train(flag + " --without " + name));
  }
}

TEST(Reports, AreFilesBesideTheMetrics) {
  const auto reports = train(
                           "--save s --use-wandb --wandb-project p --use-tensorboard --tb-project-name t "
                           "--use-trackio --trackio-dir d --wandb-key secret")
                           .save.reports;
  EXPECT_TRUE(reports.wandb && reports.tensorboard && reports.trackio);
  EXPECT_EQ(reports.wandb_project, "p");
  EXPECT_EQ(reports.tensorboard_dir, "s/tensorboard/t/");
  EXPECT_EQ(reports.trackio_dir, "d");
  EXPECT_TRUE(parse_sft(sft_args("--save s --use-wandb")).options.save.reports.wandb);
  EXPECT_TRUE(train("--use-wandb").save.reports.wandb);  // in the current directory, where wandb itself would write
  const auto silent = parse_train(train_args("--save s --wandb-project p"));
  EXPECT_FALSE(silent.options.save.reports.wandb);
  EXPECT_EQ(
      std::ranges::count(silent.notes, "--wandb-project: nothing is written for Weights & Biases without --use-wandb"),
      1);
  rejects("--save s --tb-project-name t", {"--tb-project-name needs --use-tensorboard"});
  EXPECT_FALSE(train("--save s --use-wandb --wandb-project p --without use-wandb,wandb-project").save.reports.any());
}

TEST(Reports, ADashboardNeedsFilesAndATokenForOthers) {
  rejects("--dashboard 7860", {"--dashboard needs --save"});
  rejects("--save s --dashboard-host ::1", {"--dashboard-host needs --dashboard"});
  const auto command = parse_train(train_args("--n-samples-per-prompt 2 --save s --dashboard 0"));
  ASSERT_TRUE(command.dashboard.has_value());
  EXPECT_EQ(command.dashboard->runs, Values{"s"});
  EXPECT_EQ(command.dashboard->host, "127.0.0.1");
}

TEST(Secrets, ComeByFileAndAreShownNowhere) {
  const lockstep::testing::TempDirectory dir;
  const std::string file = (dir.path() / "key").string();
  fs::write_file_atomic(file, "  hunter2\n");
  const std::string judge = "--save s --rm-type judge --rm-url http://localhost:1 --judge-model m ";
  for (const std::string& given : {std::string("--rm-api-key hunter2"), "--rm-api-key-file " + file}) {
    const auto command = parse_train(train_args("--n-samples-per-prompt 2 " + judge + given));
    EXPECT_EQ(command.options.reward.api_key, "hunter2");
    EXPECT_EQ(json_text(command.options.save.arguments).find("hunter2"), std::string::npos);
    for (const std::string& note : command.notes) EXPECT_EQ(note.find("hunter2"), std::string::npos) << note;
  }
  const auto within =
      parse_train(train_args("--n-samples-per-prompt 2 --save s --rm-type remote_rm --rm-url http://h/x?key=hunter2"));
  EXPECT_EQ(within.options.save.arguments.at("--rm-url"), "http://h/x?key=***");
  // What flags with a KEY are given is shown only where it is a key of a row.
  const auto rows = parse_train(train_args(
      "--n-samples-per-prompt 2 --save s --label-key answer --metadata-key extra --opd-teacher-key teacher"));
  for (const auto& [flag, shown] :
       {std::pair("--label-key", "answer"), {"--metadata-key", "extra"}, {"--opd-teacher-key", "teacher"}})
    EXPECT_EQ(rows.options.save.arguments.at(flag), shown) << flag;
  fs::write_file_atomic(file, "two\nlines");
  rejects(judge + "--rm-api-key-file " + file, {"--rm-api-key-file names a file without a key", "one line"});
}

TEST(Without, LeavesOutWhatChangesNoResult) {
  for (const char* names : {"use-wandb,sglang-tp-size", "--use-wandb,--sglang-tp-size", "use-wandb sglang-tp-size"}) {
    Values args = train_args("--n-samples-per-prompt 2 --use-wandb --sglang-tp-size 8");
    const Values list = words(names);
    args.push_back("--without=" + list[0]);
    if (list.size() > 1)
      args = train_args("--n-samples-per-prompt 2 --use-wandb --sglang-tp-size 8 --without " + std::string(names));
    const auto notes = parse_train(args).notes;
    ASSERT_EQ(notes.size(), 2u) << names;
    EXPECT_TRUE(notes[0].starts_with("--use-wandb: left out (--without): ")) << notes[0];
    EXPECT_TRUE(notes[1].starts_with("--sglang-tp-size 8: left out (--without): ")) << notes[1];
  }
  EXPECT_NO_THROW(train("--without use-wandb"));  // scripts may share it
  for (const char* flag : {"lr", "use-tis", "sglang-dtype", "num-layers", "colocate", "nonsense"})
    rejects(std::string("--without ") + flag, {"do without", flag, "layouts"});
}

TEST(Without, TheErrorEndsInOneThatIsReady) {
  rejects("--use-mlflow --use-critic --sglang-tp-size 2",
          {"not available yet: --use-mlflow, --use-critic, --sglang-tp-size 2",
           "what changes no result: --without use-mlflow,sglang-tp-size"});
  rejects("--use-mlflow --sglang-tp-size 2 --without use-mlflow", {"--without use-mlflow,sglang-tp-size"});
  expect_error<ConfigError>([] { parse_sft(sft_args("--use-mlflow")); }, {"--without use-mlflow"});
}

}  // namespace
}  // namespace lockstep::cli
