// The program as a process: output streams, exit codes, Ctrl-C.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <new>
#include <sstream>

#include "cli/command_line.h"
#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep::cli {
namespace {

struct Outcome {
  int code = -1;
  std::string out, err;
};

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Runs the program through the shell; `before` stands in front of it.
Outcome run_program(const testing::TempDirectory& dir, const std::string& args, const std::string& before = "") {
  const std::string command =
      before + " " LOCKSTEP_BINARY " " + args + " >" + (dir / "out").string() + " 2>" + (dir / "err").string();
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(dir / "out"), read(dir / "err")};
}

const std::string kModel = LOCKSTEP_SOURCE_DIR "/models/arith";
const std::string kTrain =
    "train --hf-checkpoint " + kModel + " --prompt-data " + kModel +
    "/train.jsonl --input-key prompt --label-key label --rm-type number --rollout-batch-size 8 "
    "--n-samples-per-prompt 4 --rollout-max-response-len 16 --lora-rank 8 --target-modules all-linear --device cpu ";

TEST(Process, HelpGoesToStdout) {
  const testing::TempDirectory dir;
  for (const char* args : {"--help", "train --help", "sft -h", "score --help", "generate --help", "chat --help",
                           "eval --help", "reward --help", "export --help", "inspect --help", "render --help",
                           "bench --help", "serve --help", "train --nonsense --help"}) {
    const Outcome outcome = run_program(dir, args);
    EXPECT_EQ(outcome.code, 0) << args;
    EXPECT_NE(outcome.out.find("Usage: lockstep"), std::string::npos) << args;
    EXPECT_EQ(outcome.err, "") << args;
  }
}

TEST(Process, ServersDrainWhenTheirTerminalIsGone) {
  const testing::TempDirectory dir;
  for (const char* name : {"TERM", "HUP"}) {
    const std::string serve = fmt::format(
        "{} serve --hf-checkpoint {} --port 0 --device cpu >{} 2>&1 & server=$!; "
        "until grep -q http {}; do sleep 0.05; kill -0 $server || exit 9; done; kill -{} $server; wait $server",
        LOCKSTEP_BINARY, kModel, (dir / name).string(), (dir / name).string(), name);
    EXPECT_EQ(WEXITSTATUS(std::system(serve.c_str())), 0) << name << "\n" << read(dir / name);
  }
}

TEST(Process, RewardGradesAFile) {
  const testing::TempDirectory dir;
  const std::string labels =
      " --input " + kModel + "/test.jsonl@[0:20] --response-key label --output " + (dir / "o").string();
  const Outcome numbers = run_program(dir, "reward --rm-type number" + labels);
  EXPECT_EQ(numbers.out, "reward 1.0000, mean of 20 rows\n");
  EXPECT_NE(numbers.err.find("graded  20 rows by number"), std::string::npos) << numbers.err;
  EXPECT_EQ(run_program(dir, "reward --rm-type math" + labels).out, "reward 0.0000, mean of 20 rows\n");
  EXPECT_EQ(run_program(dir, "reward --rm-type ifbench" + labels).code, 2);
}

TEST(Process, VersionIsTheProjects) {
  const testing::TempDirectory dir;
  const Outcome outcome = run_program(dir, "--version");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "lockstep " + std::string(kVersion) + "\n");
  EXPECT_NE(read(LOCKSTEP_SOURCE_DIR "/CMakeLists.txt").find("VERSION " + std::string(kVersion)), std::string::npos);
}

TEST(Process, ConfigErrorsAreTwo) {
  const testing::TempDirectory dir;
  const Outcome nothing = run_program(dir, "");
  EXPECT_EQ(nothing.code, 2);
  EXPECT_NE(nothing.err.find("Commands:"), std::string::npos);
  const Outcome command = run_program(dir, "trian");
  EXPECT_EQ(command.code, 2);
  EXPECT_NE(command.err.find("lockstep train"), std::string::npos);
  const Outcome flag = run_program(dir, kTrain + "--num-rollout x");
  EXPECT_EQ(flag.code, 2);
  EXPECT_EQ(flag.out, "");
  for (const char* part :
       {"error: bad value of --num-rollout", "got:    x", "wanted: a whole number", "kind:   ConfigError"})
    EXPECT_NE(flag.err.find(part), std::string::npos) << flag.err;
}

TEST(Process, ModelShapeIsCompared) {
  const testing::TempDirectory dir;
  const Outcome outcome = run_program(dir, kTrain + "--num-rollout 1 --dry-run --num-layers 999");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("--num-layers"), std::string::npos) << outcome.err;
}

TEST(Process, DryRunPrintsThePlan) {
  const testing::TempDirectory dir;
  const Outcome outcome = run_program(dir, kTrain + "--num-rollout 1 --dry-run --sequence-parallel");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("--sequence-parallel: each rank has the whole model"), std::string::npos) << outcome.out;
}

TEST(Process, ADryRunShowsWhatFlagsHaveSet) {
  const testing::TempDirectory dir;
  const Outcome outcome = run_program(
      dir, kTrain + "--num-rollout 1 --dry-run --policy-loss cispo --eps-clip 0.3 --lora-dropout 0.1 --seed 5");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* line : {"--policy-loss \"cispo\"\n", "--eps-clip 0.3\n", "--lora-dropout 0.1\n", "--seed 5\n",
                           "--rm-type \"number\"\n", "--lr-warmup-iters 0\n", "2000 prompts from "})
    EXPECT_NE(outcome.out.find(line), std::string::npos) << line << outcome.out;
}

TEST(Process, ADryRunReadsThePrompts) {
  const testing::TempDirectory dir;
  for (const char* flag : {"--label-key foo", "--input-key foo", "--rollout-max-prompt-len 1"})
    EXPECT_EQ(run_program(dir, kTrain + "--num-rollout 1 --dry-run " + flag).code, 3) << flag;
  EXPECT_EQ(run_program(
                dir, kTrain + "--num-rollout 1 --dry-run --eval-interval 1 --eval-label-key foo --eval-prompt-data h " +
                         kModel + "/test.jsonl")
                .code,
            3)
      << "held-out rows, too";
  const std::string mixed = dir.write("mixed.jsonl", R"({"prompt": "1+2=", "label": "3"})"
                                                     "\n"
                                                     R"({"prompt": "111111111+2=", "label": "111111113"})"
                                                     "\n")
                                .string();
  const Outcome outcome = run_program(dir, kTrain +
                                               "--num-rollout 1 --dry-run --eval-interval 1 --eval-max-prompt-len "
                                               "8 --eval-prompt-data h " +
                                               mixed);
  EXPECT_NE(outcome.out.find(fmt::format("h: 1 prompts from {}, 1 too long, dropped, every 1 rollouts", mixed)),
            std::string::npos)
      << outcome.out << outcome.err;
  EXPECT_EQ(run_program(dir, kTrain + "--num-rollout 1 --dry-run --rm-type judge --rm-url http://127.0.0.1:9/ "
                                      "--judge-model q --judge-prompt /nonexistent")
                .code,
            3);
}

TEST(Process, ADryRunReadsTheRows) {
  const testing::TempDirectory dir;
  const std::string sft =
      "sft --hf-checkpoint " + kModel +
      " --lora-rank 8 --target-modules all-linear --global-batch-size 1 --train-iters 1 --device cpu "
      "--dry-run --prompt-data ";
  const std::string good = dir.write("good.jsonl", "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n").string();
  const Outcome outcome = run_program(dir, sft + good);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* text : {"1 rows from ", "--loss-mask-type \"auto\"\n", "--rollout-seed 42\n"})
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << outcome.out;
  const std::string bad = dir.write("bad.jsonl", "{\"prompt\": \"1+1=\"}\n").string();
  EXPECT_EQ(run_program(dir, sft + bad).code, 3);
}

TEST(Process, DataErrorsAreThree) {
  const testing::TempDirectory dir;
  const auto rows = dir.write("rows.jsonl", "{\"tokens\": [1, 2]}\nnot json\n");
  const Outcome outcome = run_program(
      dir, "score --hf-checkpoint " + kModel + " --input " + rows.string() + " --output " + (dir / "o").string());
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_NE(outcome.err.find("DataError"), std::string::npos) << outcome.err;
}

TEST(Process, RenderWritesTextAndSpans) {
  const testing::TempDirectory dir;
  const auto chat = dir.write("t.jinja",
                              "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %};{% endfor %}"
                              "{% if messages[0].bad %}{{ raise_exception('no') }}{% endif %}");
  const auto rows = dir.write("rows.jsonl", "{\"messages\": [{\"role\": \"u\", \"content\": \"é\"}]}\n");
  const Outcome good = run_program(dir, "render --chat-template " + chat.string() + " --input " + rows.string());
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_EQ(good.out, "{\"text\":\"{\\\"role\\\": \\\"u\\\", \\\"content\\\": \\\"é\\\"};\",\"spans\":[[0,30]]}\n");
  dir.write("rows.jsonl", "{\"messages\": [{\"bad\": 1}]}\n");
  const Outcome bad = run_program(dir, "render --chat-template " + chat.string() + " --input " + rows.string());
  EXPECT_EQ(bad.code, 3) << bad.err;
  for (const char* part : {"error: no", "rows.jsonl line 1", "t.jinja line 1"})
    EXPECT_NE(bad.err.find(part), std::string::npos) << bad.err;
}

TEST(Process, FormatErrorsAreFour) {
  const testing::TempDirectory dir;
  dir.write("adapter/adapter_config.json", "{\"peft_type\": ");
  dir.write("adapter/adapter_model.safetensors", "");
  const Outcome outcome = run_program(dir, "inspect " + (dir / "adapter").string());
  EXPECT_EQ(outcome.code, 4) << outcome.err;
}

TEST(Process, ShapeErrorsAreFive) {
  const testing::TempDirectory dir;
  const Outcome outcome =
      run_program(dir, "generate --hf-checkpoint " + kModel +
                           " --lora-adapter-path " LOCKSTEP_SOURCE_DIR "/tests/golden/qwen3/adapter --prompt 1+1=");
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("adapter_model.safetensors: base_model.model.model.layers.0."), std::string::npos)
      << outcome.err;
}

TEST(Process, AValueIsNoCryForHelp) {
  const testing::TempDirectory dir;
  const Outcome outcome = run_program(dir, "generate --hf-checkpoint /nonexistent/model --prompt -h");
  EXPECT_EQ(outcome.code, 2) << outcome.out;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(run_program(dir, "generate --hf-checkpoint M -h").code, 0);
}

TEST(Process, NoSaveIsSaidOnce) {
  const testing::TempDirectory dir;
  const Outcome outcome = run_program(dir, kTrain + "--num-rollout 1 --lr 1e-5");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const size_t first = outcome.out.find("no --save");
  EXPECT_NE(first, std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("no --save", first + 1), std::string::npos) << outcome.out;
}

TEST(Process, ResourceErrorsAreSeven) {
  const testing::TempDirectory dir;
  const auto file = dir.write("file", "");
  const Outcome outcome = run_program(dir, kTrain + "--num-rollout 1 --save " + (file / "below").string());
  EXPECT_EQ(outcome.code, 7) << outcome.err;
}

// Runs `command` by bash, with the program as $L, and returns its exit code.
int run_bash(const testing::TempDirectory& dir, const std::string& command) {
  const std::string script = dir.write("script.sh", "L=" LOCKSTEP_BINARY "\n" + command + "\n").string();
  const int status = std::system(("bash " + script + " 2>" + (dir / "err").string()).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Process, AFullStandardOutputIsAnError) {
  const testing::TempDirectory dir;
  const std::string grade = "$L reward --rm-type number --input " + kModel + "/test.jsonl --response-key label";
  EXPECT_EQ(run_bash(dir, grade + " >/dev/full"), 7);
  EXPECT_NE(read(dir / "err").find("standard output"), std::string::npos) << read(dir / "err");
  EXPECT_EQ(run_bash(dir, grade + " >" + (dir / "out").string()), 0);
}

TEST(Process, AFileBeyondTheLimitOfItsSizeIsAnError) {
  const testing::TempDirectory dir;
  EXPECT_EQ(run_bash(dir, "ulimit -f 1; exec $L reward --rm-type number --input " + kModel +
                              "/test.jsonl --response-key label --output " + (dir / "out").string()),
            7);
  EXPECT_NE(read(dir / "err").find("cannot write"), std::string::npos) << read(dir / "err");
}

TEST(Process, ARunWhoseOutputNobodyReadsGoesOnAndSaves) {
  const testing::TempDirectory dir;
  const std::string save = (dir / "run").string();
  // A pipe whose reader is gone before the run begins.
  const std::string pipe = (dir / "pipe").string();
  EXPECT_EQ(run_bash(dir, "mkfifo " + pipe + "; exec 4<>" + pipe + "; exec 5>" + pipe + "; exec 4<&-\n$L " + kTrain +
                              "--num-rollout 4 --lr 1e-4 --save " + save + " >&5"),
            7);
  EXPECT_TRUE(std::filesystem::exists(dir / "run/iter_0000004")) << read(dir / "err");
}

TEST(Process, ARewardThatCannotBeHadEndsTheRun) {
  const testing::TempDirectory dir;
  const std::string save = (dir / "run").string();
  const Outcome outcome =
      run_program(dir, kTrain + "--num-rollout 4 --lr 1e-4 --custom-rm-path no_such_module.fn --save " + save);
  EXPECT_FALSE(std::filesystem::exists(dir / "run/iter_0000001")) << "the prompts were not used up";
  EXPECT_EQ(outcome.code, 3) << outcome.out;
  EXPECT_NE(outcome.err.find("no reward is known in the rollout"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("No module named 'no_such_module'"), std::string::npos) << outcome.err;
  // Nor does a run go on without it.
  dir.write("fn.py", "def fn(args, sample):\n    return 1.0\n");
  const std::string goes_on = kTrain + "--lr 1e-4 --custom-rm-path fn.fn --load " + save + " --save " + save;
  const std::string path = "PYTHONPATH=" + dir.path().string();
  EXPECT_EQ(run_program(dir, goes_on + " --num-rollout 1", path).code, 0) << read(dir / "err");
  std::filesystem::remove(dir / "fn.py");
  EXPECT_EQ(run_program(dir, goes_on + " --num-rollout 3", path).code, 3);
  EXPECT_FALSE(std::filesystem::exists(dir / "run/iter_0000002"));
}

TEST(Process, AnInterruptSavesAndTheResumedRunIsTheWholeOne) {
  const testing::TempDirectory dir;
  const auto save = dir / "save", whole = dir / "whole";
  // Ctrl-C once the first iteration is logged; job control, or the shell would start the program deaf to it.
  dir.write("interrupt.sh", "set -m\n\"$@\" &\nwhile kill -0 $! && ! [ -s " + (save / "metrics.jsonl").string() +
                                " ]; do sleep 0.02; done\nkill -INT $!\nwait $!\n");
  const std::string train = kTrain + "--lr 1e-3 --save ";
  const Outcome outcome =
      run_program(dir, train + save.string() + " --num-rollout 100000", "bash " + (dir / "interrupt.sh").string());
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_NE(outcome.err.find("Cancelled"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("--load " + save.string()), std::string::npos) << outcome.err;
  const int done = std::stoi(read(save / "latest_checkpointed_iteration.txt"));
  ASSERT_GE(done, 1);
  const std::string to = " --num-rollout " + std::to_string(done + 1);
  EXPECT_EQ(run_program(dir, train + save.string() + to + " --load " + save.string()).code, 0);
  EXPECT_EQ(run_program(dir, train + whole.string() + to).code, 0);
  const auto adapter =
      std::filesystem::path(fmt::format("iter_{:07}", done + 1)) / "lora_adapter" / "adapter_model.safetensors";
  EXPECT_EQ(read(save / adapter), read(whole / adapter));
  EXPECT_FALSE(read(whole / adapter).empty());
}

TEST(Process, AKilledGenerateGoesOn) {
  const testing::TempDirectory dir;
  std::string rows;
  for (int i = 0; i < 300; ++i) rows += "{\"prompt\": \"" + std::to_string(i) + "+7=\"}\n";
  dir.write("in.jsonl", rows);
  const auto out = dir / "out.jsonl", whole = dir / "whole.jsonl";
  const std::string generate = "generate --hf-checkpoint " + kModel +
                               " --device cpu --max-tokens 8 --max-num-seqs 4 --input " + (dir / "in.jsonl").string() +
                               " --output ";
  // Killed, then asked to stop (job control, or the shell would start the program deaf to it), then left alone.
  for (const char* signal : {"KILL", "INT"}) {
    std::filesystem::remove(dir / "stop.sh");
    const std::string seen = std::to_string(std::filesystem::exists(out) ? std::filesystem::file_size(out) : 0);
    dir.write("stop.sh", "set -m\n\"$@\" &\nwhile kill -0 $! && ! [ $(stat -c %s " + out.string() + " || echo 0) -gt " +
                             seen + " ]; do sleep 0.01; done\nkill -" + signal + " $!\nwait $!\n");
    const Outcome outcome = run_program(dir, generate + out.string(), "bash " + (dir / "stop.sh").string());
    if (std::string(signal) == "INT") {
      EXPECT_TRUE(outcome.code == 130 || outcome.code == 0) << outcome.err;
    }
  }
  EXPECT_EQ(run_program(dir, generate + out.string()).code, 0);
  EXPECT_EQ(run_program(dir, generate + whole.string()).code, 0);
  EXPECT_FALSE(read(whole).empty());
  EXPECT_EQ(read(out), read(whole));
  const Outcome other = run_program(dir, generate + out.string() + " --temperature 0");
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_NE(other.err.find("--overwrite"), std::string::npos) << other.err;
}

TEST(Process, ChatReadsItsTurnsFromAPipe) {
  const testing::TempDirectory dir;
  const std::string chat = "chat --hf-checkpoint " + kModel + " --device cpu --temperature 0 --max-tokens 4";
  const Outcome one = run_program(dir, chat, "echo '12+34=' |");
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(std::ranges::count(one.out, '\n'), 1) << one.out;
  const Outcome same = run_program(dir, "generate --interactive" + chat.substr(4), "echo '12+34=' |");
  EXPECT_EQ(same.out, one.out);
  EXPECT_EQ(run_program(dir, chat + " </dev/null").out, "");
  const Outcome bad = run_program(dir, chat, "printf '/nonsense\\n12+34=\\n' |");
  EXPECT_EQ(bad.code, 3) << bad.err;
  EXPECT_EQ(bad.out, one.out);
}

template <class Thrown>
std::pair<int, std::string> reported(const Thrown& thrown) {
  std::ostringstream err;
  try {
    throw thrown;
  } catch (...) {
    const int code = report_error(err);
    return {code, err.str()};
  }
}

TEST(Report, EveryKindHasItsCode) {
  EXPECT_EQ(reported(ConfigError({.what = "x"})).first, 2);
  EXPECT_EQ(reported(DataError({.what = "x"})).first, 3);
  EXPECT_EQ(reported(FormatError({.what = "x"})).first, 4);
  EXPECT_EQ(reported(ShapeError({.what = "x"})).first, 5);
  EXPECT_EQ(reported(DTypeError({.what = "x"})).first, 5);
  EXPECT_EQ(reported(DeviceError({.what = "x"})).first, 6);
  EXPECT_EQ(reported(ResourceError({.what = "x"})).first, 7);
  EXPECT_EQ(reported(Cancelled({.what = "x"})).first, 130);
  const auto memory = reported(std::bad_alloc());
  EXPECT_EQ(memory.first, 7);
  EXPECT_NE(memory.second.find("out of memory"), std::string::npos);
  EXPECT_NE(memory.second.find("ResourceError"), std::string::npos);
  const auto other = reported(std::runtime_error("boom"));
  EXPECT_EQ(other.first, 1);
  EXPECT_NE(other.second.find("boom"), std::string::npos);
  EXPECT_EQ(reported(5).first, 1);
}

}  // namespace
}  // namespace lockstep::cli
