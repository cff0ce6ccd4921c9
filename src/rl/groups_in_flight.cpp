#include "rl/groups_in_flight.h"

#include <fmt/format.h>

#include <utility>

#include "core/error.h"

namespace lockstep::rl {

GroupsInFlight::GroupsInFlight(rollout::Sampler& sampler, Reward& reward, rollout::GroupParams params, bool follow,
                               const text::Tokenizer* tokenizer)
    : sampler_(sampler), reward_(reward), params_(std::move(params)), follow_(follow), tokenizer_(tokenizer) {}

GroupsInFlight::~GroupsInFlight() {
  for (const auto& [ticket, number] : drawing_) sampler_.cancel(ticket);
  for (const auto& [ticket, judging] : judging_) reward_.cancel(ticket);
}

void GroupsInFlight::submit(GroupRequest request, const lora::PolicyId& policy) {
  const rollout::Ticket ticket =
      sampler_.submit({.tokens = request.asked.tokens,
                       .sampling = params_.sampling,
                       .n = params_.n,
                       .rollout = request.number,
                       .row = request.asked.row,
                       .first_sample = request.asked.first_sample,
                       .policy = policy,
                       .follow = follow_,
                       .where = fmt::format("group {} (dataset row {})", request.number, request.asked.row)});
  const uint32_t number = request.number;
  drawing_.emplace(ticket, number);
  Group& group = groups_[number];
  group = {.request = std::move(request), .ticket = ticket, .samples = {}};
  group.samples.resize(static_cast<size_t>(params_.n));
  for (size_t i = 0; i < group.samples.size(); ++i) group.samples[i].sample.index = static_cast<int64_t>(i);
}

std::vector<GroupRequest> GroupsInFlight::requests() const {
  std::vector<GroupRequest> requests;
  for (const auto& [number, group] : groups_) requests.push_back(group.request);
  return requests;
}

std::vector<FinishedGroup> GroupsInFlight::wait(std::chrono::steady_clock::time_point deadline) {
  std::vector<FinishedGroup> finished;
  do {
    if (!drawing_.empty()) {
      std::vector<rollout::Event> of_others;
      for (const rollout::Event& event : sampler_.wait(deadline))
        if (drawing_.contains(event.ticket))
          take(event);
        else
          of_others.push_back(event);
      sampler_.put_back(of_others);
    }
    if (judging_.empty()) continue;
    // While samples are drawn nobody waits for rewards.
    for (Reward::Graded& graded : reward_.poll(drawing_.empty() ? deadline : Reward::Deadline{}))
      take(std::move(graded), finished);
  } while (finished.empty() && !groups_.empty() && std::chrono::steady_clock::now() < deadline);
  return finished;
}

std::vector<FinishedGroup> GroupsInFlight::finish_grading(const std::function<bool()>& stopping) {
  constexpr std::chrono::milliseconds kBetweenQuestions{50};
  std::vector<FinishedGroup> finished;
  while (!judging_.empty() && !stopping())
    for (Reward::Graded& graded : reward_.poll(std::chrono::steady_clock::now() + kBetweenQuestions))
      take(std::move(graded), finished);
  return finished;
}

void GroupsInFlight::take(const rollout::Event& event) {
  const rollout::Token* token = rollout::token_of(event);
  if (token == nullptr) return;
  Group& group = groups_.at(drawing_.at(event.ticket));
  if (token->finish == rollout::FinishReason::error)
    throw DataError(
        rollout::not_finite(*token, fmt::format("group {}, sample {}", group.request.number, token->index)));
  rollout::Sample& sample = group.samples[static_cast<size_t>(token->index)].sample;
  sample.tokens.push_back(token->token);
  sample.logprobs.push_back(token->logprob);
  sample.versions.push_back(token->version);
  if (!token->finish) return;
  sample.finish = *token->finish;
  drawn(group, token->index);
}

void GroupsInFlight::drawn(Group& group, int64_t index) {
  const bool all = ++group.drawn == group.samples.size();
  if (all) drawing_.erase(group.ticket);
  if (!reward_.grades_groups()) {
    judge(group, {static_cast<size_t>(index)});
  } else if (all) {
    std::vector<size_t> positions;
    for (size_t i = 0; i < group.samples.size(); ++i) positions.push_back(i);
    judge(group, std::move(positions));
  }
}

RewardSample GroupsInFlight::judged(const Group& group, size_t index) const {
  const Trajectory trajectory = make_trajectory(group.request.asked, group.request.row, group.samples[index].sample,
                                                {tokenizer_, params_.sampling.stop_token_ids});
  RewardSample sample = reward_sample(trajectory);
  sample.group = group.request.number;
  sample.rollout = group.request.number;
  return sample;
}

void GroupsInFlight::judge(Group& group, std::vector<size_t> positions) {
  std::vector<RewardSample> samples;
  for (const size_t i : positions) samples.push_back(judged(group, i));
  const Reward::Ticket ticket = reward_.submit(std::move(samples));
  judging_.emplace(ticket, Judging{.group = group.request.number, .positions = std::move(positions)});
}

void GroupsInFlight::take(Reward::Graded graded, std::vector<FinishedGroup>& finished) {
  const auto found = judging_.find(graded.ticket);
  if (found == judging_.end()) return;
  const Judging judging = std::move(found->second);
  judging_.erase(found);
  const auto entry = groups_.find(judging.group);
  Group& group = entry->second;
  for (size_t i = 0; i < judging.positions.size(); ++i)
    group.samples[judging.positions[i]].score = std::move(graded.scores.at(i));
  group.graded += judging.positions.size();
  if (group.graded < group.samples.size()) return;
  finished.push_back({.request = std::move(group.request), .samples = std::move(group.samples)});
  groups_.erase(entry);
}

std::vector<Trajectory> trajectories_of(const FinishedGroup& finished, int64_t group, const ResponseText& text) {
  std::vector<Trajectory> trajectories;
  for (const GradedSample& graded : finished.samples) {
    trajectories.push_back(make_trajectory(finished.request.asked, finished.request.row, graded.sample, text));
    trajectories.back().group = group;
    trajectories.back().reward = graded.score.value;
    trajectories.back().reward_parts = graded.score.parts;
  }
  return trajectories;
}

}  // namespace lockstep::rl
