// --rm-type code: the response is a program, which is tried on this machine.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "net/sandbox.h"
#include "rl/reward_inbox.h"

namespace lockstep::rl {

struct CodeRewardOptions {
  int64_t workers = 4;                        // samples that are tried at once
  std::chrono::milliseconds timeout{10'000};  // of one case
  int64_t memory_mb = 1024;
};

// Runs the response's code (code.h: code_of) in a net::Sandbox on each case of the label (code_cases). The reward is
// the share of cases that pass: it ended by itself with exit code 0 and printed what was wanted. Unknown: a label
// without cases, a sandbox that could not start the program.
class CodeReward : public Reward {
 public:
  // Before there are threads. ConfigError: the machine cannot isolate programs (Sandbox).
  explicit CodeReward(const CodeRewardOptions& options);
  ~CodeReward() override;

  Ticket submit(std::vector<RewardSample> samples) override;
  std::vector<Graded> poll(Deadline deadline) override { return inbox_.poll(deadline); }
  void cancel(Ticket ticket) override { inbox_.cancel(ticket); }

 private:
  struct Job {
    Ticket ticket = 0;
    size_t position = 0;
    RewardSample sample;
  };
  void work(net::Sandbox& sandbox);
  Score score(net::Sandbox& sandbox, const RewardSample& sample, Ticket ticket) const;

  const CodeRewardOptions options_;
  std::vector<std::unique_ptr<net::Sandbox>> sandboxes_;
  RewardInbox inbox_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> waiting_;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::rl
