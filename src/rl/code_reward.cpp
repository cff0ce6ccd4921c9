#include "rl/code_reward.h"

#include <utility>

#include "core/error.h"
#include "rl/reward/code.h"
#include "rl/score_json.h"

namespace lockstep::rl {

CodeReward::CodeReward(const CodeRewardOptions& options) : options_(options) {
  for (int64_t i = 0; i < options.workers; ++i) sandboxes_.push_back(std::make_unique<net::Sandbox>());
  for (const auto& sandbox : sandboxes_) threads_.emplace_back([this, &sandbox] { work(*sandbox); });
}

CodeReward::~CodeReward() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Reward::Ticket CodeReward::submit(std::vector<RewardSample> samples) {
  const Ticket ticket = inbox_.open(samples.size());
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < samples.size(); ++i)
      waiting_.push_back({.ticket = ticket, .position = i, .sample = std::move(samples[i])});
  }
  changed_.notify_all();
  return ticket;
}

void CodeReward::work(net::Sandbox& sandbox) {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Score score;
    try {
      score = this->score(sandbox, job.sample, job.ticket);
    } catch (const Error& error) {
      score = Score::unknown(error.what());
    }
    inbox_.deliver(job.ticket, job.position, std::move(score));
  }
}

Score CodeReward::score(net::Sandbox& sandbox, const RewardSample& sample, Ticket ticket) const {
  using End = net::SandboxResult::End;
  const std::optional<CodeCases> cases = code_cases(sample.row->label);
  if (!cases) return Score::unknown(std::string("the label is not ") + wanted_cases());
  const std::string code = code_of(sample.response);
  size_t passed = 0;
  for (const CodeCase& one : cases->cases) {
    if (stopping_ || !inbox_.holds(ticket)) return Score::unknown("nobody waits for it");
    const net::SandboxResult result = sandbox.run({.code = code + one.appended,
                                                   .input = one.input,
                                                   .timeout = options_.timeout,
                                                   .memory_mb = options_.memory_mb});
    if (result.end == End::not_started) return Score::unknown("the sandbox did not start: " + excerpt(result.error));
    passed += result.end == End::exited && result.code == 0 && one.passes(result.output) ? 1 : 0;
  }
  return Score::of(static_cast<double>(passed) / static_cast<double>(cases->cases.size()));
}

}  // namespace lockstep::rl
