#include "rl/score_json.h"

namespace lockstep::rl {

std::string excerpt(std::string_view text) {
  constexpr size_t kMaxText = 200;
  std::string line(text.substr(0, kMaxText));
  for (char& c : line)
    if (c == '\n' || c == '\r') c = ' ';
  return line + (text.size() > kMaxText ? "..." : "");
}

Score score_of_json(const Json& value, const std::string& reward_key) {
  if (value.is_number()) return Score::of(value.get<double>());
  if (value.is_null()) return Score::unknown("the reward is null");
  if (!value.is_object()) return Score::unknown("the reward is no number: " + excerpt(json_text(value)));
  const std::string key = reward_key.empty() ? "score" : reward_key;
  if (!value.contains(key))
    return Score::unknown("the reward is an object without \"" + key + "\": " + excerpt(json_text(value)));
  if (!value[key].is_number())
    return Score::unknown("\"" + key + "\" of the reward is no number: " + excerpt(json_text(value)));
  Score score = Score::of(value[key].get<double>());
  for (const auto& [name, part] : value.items())
    if (part.is_number()) score.parts.push_back({.name = name, .value = Score::of(part.get<double>()).value});
  return score;
}

OrderedJson sample_json(const RewardSample& sample) {
  OrderedJson json = {{"prompt", sample.row->prompt},
                      {"response", sample.response},
                      {"label", sample.row->label},
                      {"group", sample.group},
                      {"index", sample.index},
                      {"rollout", sample.rollout},
                      {"response_length", sample.tokens.size()},
                      {"truncated", sample.truncated},
                      {"tokens", sample.tokens}};
  if (!sample.row->json.empty()) json["row"] = OrderedJson::parse(sample.row->json, nullptr, false);
  return json;
}

}  // namespace lockstep::rl
