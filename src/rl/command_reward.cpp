#include "rl/command_reward.h"

#include <utility>

#include "rl/score_json.h"

namespace lockstep::rl {

namespace {

// The scores of an answer; empty: it is none. `failure` says what is wrong with it.
std::vector<Score> read_answer(const std::string& line, int64_t id, size_t num_samples,
                               const CommandRewardOptions& options, std::string& failure) {
  const Json answer = Json::parse(line, nullptr, false);
  failure = "the program's answer is none: " + excerpt(line);
  if (!answer.is_object() || answer.value("id", Json()) != id) return {};
  const auto said = answer.find("failure");
  const std::string why = said != answer.end() && said->is_string() ? said->get<std::string>() : "";
  std::vector<Score> scores;
  const auto add = [&](const Json& reward) {
    scores.push_back(score_of_json(reward, options.reward_key));
    if (!scores.back().value && !why.empty()) scores.back().failure = excerpt(why);
  };
  if (!options.groups) {
    if (answer.contains("reward")) add(answer["reward"]);
  } else if (answer.contains("rewards") && answer["rewards"].is_array() && answer["rewards"].size() == num_samples) {
    for (const Json& reward : answer["rewards"]) add(reward);
  }
  return scores;
}

}  // namespace

CommandReward::CommandReward(CommandRewardOptions options) : options_(std::move(options)), pool_(options_.pool) {}

Reward::Ticket CommandReward::submit(std::vector<RewardSample> samples) {
  const Ticket ticket = inbox_.open(samples.size());
  const auto send = [&](OrderedJson request, size_t first, size_t count) {
    const int64_t id = request["id"];
    pool_.send(json_text(request), [this, ticket, id, first, count](const net::LinePool::Answer& answer) {
      return take({.ticket = ticket, .id = id, .first = first, .count = count}, answer);
    });
  };
  if (options_.groups) {
    OrderedJson request = {{"id", next_id_++}, {"samples", OrderedJson::array()}};
    for (const RewardSample& sample : samples) request["samples"].push_back(sample_json(sample));
    send(std::move(request), 0, samples.size());
    return ticket;
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    OrderedJson request = {{"id", next_id_++}};
    request.update(sample_json(samples[i]));
    send(std::move(request), i, 1);
  }
  return ticket;
}

bool CommandReward::take(const Asked& asked, const net::LinePool::Answer& answer) {
  std::string failure = answer.failure;
  std::vector<Score> scores;
  if (failure.empty()) scores = read_answer(answer.line, asked.id, asked.count, options_, failure);
  const bool answered = !scores.empty();
  for (size_t i = 0; i < asked.count; ++i)
    inbox_.deliver(asked.ticket, asked.first + i, answered ? std::move(scores[i]) : Score::unknown(failure));
  return answered;
}

}  // namespace lockstep::rl
