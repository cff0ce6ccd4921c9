// Jobs of lockstep launch, as a user would start them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/iterations.h"
#include "core/json.h"
#include "support/metric_lines.h"
#include "support/temp_directory.h"

namespace lockstep::testing {

using namespace std::chrono_literals;

inline const std::string kArithModel = LOCKSTEP_SOURCE_DIR "/models/arith";

template <class Condition>
bool eventually(const Condition& condition, std::chrono::milliseconds most = 60s) {
  for (const auto until = std::chrono::steady_clock::now() + most; std::chrono::steady_clock::now() < until;) {
    if (condition()) return true;
    std::this_thread::sleep_for(2ms);
  }
  return false;
}

inline std::string text_of(const fs::Path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

inline bool exists(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');
  return end != std::string::npos && text[end + 2] != 'Z';  // one that is dead and not yet waited for is gone
}

class Job : public ::testing::Test {
 protected:
  ~Job() override {
    if (launcher_ > 0) {
      ::kill(launcher_, SIGKILL);
      ::waitpid(launcher_, nullptr, 0);
    }
  }

  // A run of many short steps.
  std::string sft(const std::string& save, int steps) const {
    return fmt::format(
        "sft --hf-checkpoint {0} --prompt-data {1} --lora-rank 4 --target-modules all-linear --lr 1e-3 --device cpu "
        "--threads 1 --global-batch-size 7 --train-iters {2} --lr-decay-iters {2} --rollout-shuffle --lora-dropout 0.1 "
        "--save-interval 1 --save-total-limit 3 --save {3} --load {3}",
        kArithModel, rows_.string(), steps, (dir_ / save).string());
  }

  // The same by reinforcement learning.
  std::string rl(const std::string& save, int rollouts) const {
    return fmt::format(
        "train --hf-checkpoint {0} --prompt-data {0}/train.jsonl --input-key prompt --label-key label --rm-type number "
        "--num-rollout {1} --lr-decay-iters {1} --rollout-batch-size 4 --n-samples-per-prompt 4 "
        "--rollout-max-response-len 12 --lora-rank 4 --target-modules all-linear --lr 1e-3 --device cpu --threads 1 "
        "--save-interval 1 --save-total-limit 3 --save {2} --load {2}",
        kArithModel, rollouts, (dir_ / save).string());
  }

  // Starts the program; `ranks` 0: without a launcher.
  pid_t start(int ranks, const std::string& arguments, const std::string& launch_options = "") {
    return start_shell(
        ranks == 0 ? fmt::format("exec {} {}", LOCKSTEP_BINARY, arguments)
                   : fmt::format("exec {} launch -n {} {} {}", LOCKSTEP_BINARY, ranks, launch_options, arguments));
  }
  pid_t start_shell(const std::string& command) {
    const std::string out = (dir_ / "out").string(), err = (dir_ / "err").string();
    std::fflush(nullptr);  // else the child prints what is buffered, too
    launcher_ = ::fork();
    if (launcher_ != 0) return launcher_;
    ::setpgid(0, 0);
    if (std::freopen(out.c_str(), "w", stdout) != nullptr && std::freopen(err.c_str(), "w", stderr) != nullptr)
      ::execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  // The exit code, as a shell says it.
  int finish() {
    int status = 0;
    ::waitpid(launcher_, &status, 0);
    launcher_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  int run(int ranks, const std::string& arguments, const std::string& launch_options = "") {
    start(ranks, arguments, launch_options);
    return finish();
  }

  // The processes of the ranks, by rank.
  std::vector<pid_t> ranks() const {
    std::vector<pid_t> found;
    std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", launcher_));
    for (pid_t child; children >> child;) found.push_back(child);
    return found;
  }
  // Every process that has this job's folder among its arguments and is not dead.
  std::vector<pid_t> processes_left() const {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const pid_t process = std::atoi(entry.path().filename().c_str());
      if (process > 0 && text_of(entry.path() / "cmdline").find(dir_.path().string()) != std::string::npos &&
          exists(process))
        found.push_back(process);
    }
    return found;
  }
  // Waits until the run has written so many lines of its log.
  bool reaches(const std::string& save, size_t lines) const {
    return eventually([&] { return metrics(save).size() >= lines; });
  }

  // What runs share of metrics.jsonl.
  std::vector<Json> metrics(const std::string& save) const {
    return shared_metrics(text_of(dir_ / save / "metrics.jsonl"));
  }
  std::string last(const std::string& save, int iteration, const std::string& file) const {
    return text_of(dir_ / save / checkpoint::iteration_directory_name(iteration) / file);
  }
  void expect_same_end(const std::string& save, const std::string& wanted, int iteration) const {
    for (const char* file : {"lora_adapter/adapter_model.safetensors", "train_state.safetensors"}) {
      EXPECT_FALSE(last(save, iteration, file).empty()) << file;
      EXPECT_EQ(last(save, iteration, file), last(wanted, iteration, file)) << file;
    }
    EXPECT_EQ(metrics(save), metrics(wanted));
  }
  std::string out() const { return text_of(dir_ / "out"); }
  std::string err() const { return text_of(dir_ / "err"); }

  const TempDirectory dir_;
  pid_t launcher_ = -1;
  const fs::Path rows_ = [this] {
    std::string rows;
    for (int i = 0; i < 23; ++i)
      rows += fmt::format("{{\"prompt\": \"{}+{}=\", \"completion\": \"{}\"}}\n", i, 3 * i, 4 * i);
    return dir_.write("rows.jsonl", rows);
  }();
};

}  // namespace lockstep::testing
