#include "rollout/sample_groups.h"

#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "core/error.h"

namespace lockstep::rollout {
namespace {

class Collector {
 public:
  Collector(Sampler& sampler, const GroupTickets& groups, const OnSample& on_sample)
      : sampler_(sampler), groups_(groups), on_sample_(on_sample), n_(groups.n) {
    for (size_t i = 0; i < groups.tickets.size(); ++i) {
      prompts_.emplace(groups.tickets[i], static_cast<int64_t>(i));
      for (int64_t s = 0; s < n_; ++s) samples_.push_back({.prompt = static_cast<int64_t>(i), .index = s});
    }
  }

  std::vector<Sample> collect(const OnProgress& on_progress) {
    constexpr std::chrono::milliseconds kBetweenReports{100};
    try {
      while (finished_ < total()) {
        const Deadline deadline = std::chrono::steady_clock::now() + kBetweenReports;
        const std::span<const Event> events = sampler_.wait(deadline);
        if (events.empty() && std::chrono::steady_clock::now() < deadline)
          throw ResourceError({.what = "a sampler has lost requests that nobody cancelled",
                               .got = fmt::format("{} of {} samples", finished_, total())});
        for (const Event& event : events) take(event);
        if (error_) std::rethrow_exception(error_);
        if (on_progress) on_progress(finished_, total());
      }
    } catch (...) {
      for (const Ticket ticket : groups_.tickets) sampler_.cancel(ticket);
      sampler_.put_back(of_others_);
      throw;
    }
    sampler_.put_back(of_others_);
    return std::move(samples_);
  }

 private:
  int64_t total() const { return static_cast<int64_t>(samples_.size()); }

  // An error is kept until all events have been looked at: those of others may come after it.
  void take(const Event& event) {
    const auto found = prompts_.find(event.ticket);
    if (found == prompts_.end()) {
      of_others_.push_back(event);
    } else if (!error_) {
      try {
        if (const Token* token = token_of(event)) take(found->second, *token);
      } catch (...) {
        error_ = std::current_exception();
      }
    }
  }

  void take(int64_t prompt, const Token& token) {
    if (token.finish == FinishReason::error)
      throw DataError({.what = token.token < 0 ? "logits are not finite" : "log-probability is not finite",
                       .where = fmt::format("prompt {}, sample {}", prompt, token.index),
                       .got = token.token < 0 ? "" : fmt::format("{} for token {}", token.logprob, token.token),
                       .attempt = "check the adapter: a diverged training run leaves such weights"});
    Sample& sample = samples_[static_cast<size_t>(prompt * n_ + token.index)];
    sample.tokens.push_back(token.token);
    sample.logprobs.push_back(token.logprob);
    sample.versions.push_back(token.version);
    if (!token.finish) return;
    sample.finish = *token.finish;
    ++finished_;
    if (on_sample_) on_sample_(sample);
  }

  Sampler& sampler_;
  const GroupTickets& groups_;
  const OnSample& on_sample_;
  const int64_t n_;
  std::unordered_map<Ticket, int64_t> prompts_;
  std::vector<Sample> samples_;
  int64_t finished_ = 0;
  std::vector<Event> of_others_;
  std::exception_ptr error_;
};

}  // namespace

GroupTickets submit_groups(Sampler& sampler, std::span<const Prompt> prompts, const GroupParams& params,
                           const lora::PolicyId& policy) {
  GroupTickets groups{.n = params.n};
  try {
    for (size_t i = 0; i < prompts.size(); ++i)
      groups.tickets.push_back(sampler.submit({.tokens = prompts[i].tokens,
                                               .sampling = params.sampling,
                                               .n = params.n,
                                               .rollout = params.rollout,
                                               .row = prompts[i].row,
                                               .first_sample = prompts[i].first_sample,
                                               .policy = policy,
                                               .where = fmt::format("prompt {} (dataset row {})", i, prompts[i].row)}));
  } catch (...) {
    for (const Ticket ticket : groups.tickets) sampler.cancel(ticket);
    throw;
  }
  return groups;
}

std::vector<Sample> collect_groups(Sampler& sampler, const GroupTickets& groups, const OnProgress& on_progress,
                                   const OnSample& on_sample) {
  return Collector(sampler, groups, on_sample).collect(on_progress);
}

std::vector<Sample> sample_groups(Sampler& sampler, std::span<const Prompt> prompts, const GroupParams& params,
                                  const lora::PolicyId& policy, const OnProgress& on_progress) {
  return collect_groups(sampler, submit_groups(sampler, prompts, params, policy), on_progress);
}

}  // namespace lockstep::rollout
