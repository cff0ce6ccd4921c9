// `lockstep train` as a process: the embedded model, a small run that saves every iteration.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "core/fs.h"
#include "core/json.h"
#include "support/metric_lines.h"
#include "support/temp_directory.h"

namespace lockstep::testing {

class TrainProcess : public ::testing::Test {
 protected:
  static constexpr int kRollouts = 8;

  // A run that saves in dir_ / name and goes on from there; what it prints is appended to "log".
  pid_t start(const std::string& name, const std::vector<std::string>& more = {}) const {
    const std::string model = LOCKSTEP_SOURCE_DIR "/models/arith", save = (dir_ / name).string();
    std::istringstream flags("train --hf-checkpoint " + model + " --prompt-data " + model +
                             "/train.jsonl --input-key prompt --label-key label --rm-type number "
                             "--rollout-batch-size 2 --n-samples-per-prompt 4 --global-batch-size 4 "
                             "--rollout-max-response-len 8 --lora-rank 4 --target-modules all-linear --lr 1e-3 "
                             "--use-kl-loss --kl-loss-coef 0.01 --rollout-shuffle --device cpu --threads 1 "
                             "--num-rollout " +
                             std::to_string(kRollouts));
    std::vector<std::string> words = {LOCKSTEP_BINARY};
    for (std::string word; flags >> word;) words.push_back(word);
    words.insert(words.end(), {"--save", save, "--load", save, "--save-interval", "1"});
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const std::string log = (dir_ / "log").string();
    const pid_t child = ::fork();
    if (child != 0) return child;
    if (std::freopen(log.c_str(), "a", stdout) != nullptr && std::freopen(log.c_str(), "a", stderr) != nullptr)
      ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  // The exit code; -1: it was killed.
  static int wait(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string read(const std::string& name) const {
    return fs::exists(dir_ / name) ? fs::read_file(dir_ / name) : std::string();
  }

  // What runs share of metrics.jsonl.
  std::vector<Json> metrics(const std::string& name) const { return shared_metrics(read(name + "/metrics.jsonl")); }

  const TempDirectory dir_;
};

}  // namespace lockstep::testing
