#include "rl/reward_queue.h"

#include <cmath>
#include <string>
#include <utility>

#include "core/error.h"

namespace lockstep::rl {

Score Score::of(double number) {
  const auto value = static_cast<float>(number);
  return std::isfinite(value) ? known(value) : unknown("the reward is no finite number: " + std::to_string(number));
}

RewardQueue::RewardQueue(Reward& reward, size_t num_samples, size_t group_size)
    : reward_(reward),
      group_size_(group_size),
      waiting_(reward.grades_groups() ? num_samples : 0),
      missing_(num_samples / group_size, group_size),
      scores_(num_samples) {}

RewardQueue::~RewardQueue() {
  for (const auto& [ticket, positions] : in_flight_) reward_.cancel(ticket);
}

void RewardQueue::add(size_t position, RewardSample sample) {
  if (!reward_.grades_groups()) {
    std::vector<RewardSample> one;
    one.push_back(std::move(sample));
    in_flight_.emplace(reward_.submit(std::move(one)), std::vector{position});
    return;
  }
  waiting_[position] = std::move(sample);
  const size_t group = position / group_size_;
  if (--missing_[group] > 0) return;
  std::vector<RewardSample> samples;
  std::vector<size_t> positions;
  for (size_t i = group * group_size_; i < (group + 1) * group_size_; ++i) {
    samples.push_back(std::move(waiting_[i]));
    positions.push_back(i);
  }
  in_flight_.emplace(reward_.submit(std::move(samples)), std::move(positions));
}

bool RewardQueue::take(Reward::Graded& graded) {
  const auto found = in_flight_.find(graded.ticket);
  if (found == in_flight_.end()) return false;
  for (size_t i = 0; i < found->second.size(); ++i) {
    Score& score = scores_[found->second[i]] = std::move(graded.scores.at(i));
    if (on_graded_) on_graded_(found->second[i], score);
  }
  in_flight_.erase(found);
  return true;
}

std::vector<Reward::Graded> wait_for_graded(Reward& reward, Reward::Deadline deadline) {
  std::vector<Reward::Graded> graded = reward.poll(deadline);
  if (graded.empty() && std::chrono::steady_clock::now() < deadline)
    throw ResourceError({.what = "a reward has lost samples that nobody cancelled"});
  return graded;
}

std::vector<Score> grade_all(Reward& reward, std::vector<RewardSample> samples, size_t group_size,
                             const Between& between) {
  constexpr std::chrono::milliseconds kBetweenReports{100};
  RewardQueue queue(reward, samples.size(), group_size);
  for (size_t i = 0; i < samples.size(); ++i) queue.add(i, std::move(samples[i]));
  size_t done = 0;
  while (!queue.idle()) {
    for (Reward::Graded& graded : wait_for_graded(reward, std::chrono::steady_clock::now() + kBetweenReports))
      if (queue.take(graded)) done += graded.scores.size();
    if (between) between(done);
  }
  return std::move(queue).scores();
}

}  // namespace lockstep::rl
