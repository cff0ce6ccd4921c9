#include "rollout/sample_groups.h"

#include <fmt/format.h>

#include <utility>

#include "core/error.h"

namespace lockstep::rollout {

std::span<const Event> wait_for_events(Sampler& sampler, Deadline deadline) {
  const std::span<const Event> events = sampler.wait(deadline);
  if (events.empty() && std::chrono::steady_clock::now() < deadline)
    throw ResourceError({.what = "a sampler has lost requests that nobody cancelled"});
  return events;
}

GroupCollector::GroupCollector(GroupTickets groups, OnSample on_sample)
    : groups_(std::move(groups)), on_sample_(std::move(on_sample)) {
  for (size_t i = 0; i < groups_.tickets.size(); ++i) {
    prompts_.emplace(groups_.tickets[i], static_cast<int64_t>(i));
    for (int64_t s = 0; s < groups_.n; ++s) samples_.push_back({.prompt = static_cast<int64_t>(i), .index = s});
  }
}

bool GroupCollector::take(const Event& event) {
  const auto found = prompts_.find(event.ticket);
  if (found == prompts_.end()) return false;
  if (error_) return true;
  try {
    if (const Token* token = token_of(event)) take(found->second, *token);
  } catch (...) {
    error_ = std::current_exception();
  }
  return true;
}

void GroupCollector::take(int64_t prompt, const Token& token) {
  if (token.finish == FinishReason::error)
    throw DataError(not_finite(token, fmt::format("prompt {}, sample {}", prompt, token.index)));
  Sample& sample = samples_[static_cast<size_t>(prompt * groups_.n + token.index)];
  sample.tokens.push_back(token.token);
  sample.logprobs.push_back(token.logprob);
  sample.versions.push_back(token.version);
  if (!token.finish) return;
  sample.finish = *token.finish;
  ++finished_;
  if (on_sample_) on_sample_(sample);
}

void GroupCollector::stop_if_failed() const {
  if (error_) std::rethrow_exception(error_);
}

void GroupCollector::cancel(Sampler& sampler) const {
  for (const Ticket ticket : groups_.tickets) sampler.cancel(ticket);
}

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
  constexpr std::chrono::milliseconds kBetweenReports{100};
  GroupCollector collector(groups, on_sample);
  std::vector<Event> of_others;
  try {
    while (!collector.done()) {
      for (const Event& event : wait_for_events(sampler, std::chrono::steady_clock::now() + kBetweenReports))
        if (!collector.take(event)) of_others.push_back(event);
      collector.stop_if_failed();
      if (on_progress) on_progress(collector.finished(), collector.total());
    }
  } catch (...) {
    collector.cancel(sampler);
    sampler.put_back(of_others);
    throw;
  }
  sampler.put_back(of_others);
  return std::move(collector).samples();
}

std::vector<Sample> sample_groups(Sampler& sampler, std::span<const Prompt> prompts, const GroupParams& params,
                                  const lora::PolicyId& policy, const OnProgress& on_progress) {
  return collect_groups(sampler, submit_groups(sampler, prompts, params, policy), on_progress);
}

}  // namespace lockstep::rollout
