#include "recipes/trajectory_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/json.h"
#include "recipes/samples/sample_line.h"

namespace lockstep::recipes {

namespace {

[[noreturn]] void fail(const JsonObject& line, const std::string& key, const std::string& wanted) {
  throw FormatError({.what = "a line is not a sample", .where = line.where() + ": " + key, .wanted = wanted});
}

// A list of numbers under `key`, each converted by `convert(number)`.
template <class T, class Convert>
std::vector<T> number_list(const JsonObject& line, const std::string& key, const Convert& convert) {
  const Json& values = line.value(key);
  if (!values.is_array()) fail(line, key, "a list");
  std::vector<T> out;
  for (const Json& value : values) {
    if (!value.is_number()) fail(line, key, "numbers");
    out.push_back(convert(value));
  }
  return out;
}

std::vector<int32_t> token_ids(const JsonObject& line, const std::string& key) {
  return number_list<int32_t>(line, key, [&](const Json& value) {
    const bool fits = value.is_number_integer() && value >= 0 && value <= std::numeric_limits<int32_t>::max();
    if (!fits) fail(line, key, "token ids");
    return value.get<int32_t>();
  });
}

// One value per token of the response: a list, or one number for all of them under `one`.
std::vector<int64_t> response_versions(const JsonObject& line, size_t response) {
  if (!line.has("versions")) return std::vector<int64_t>(response, line.integer("version", lora::PolicyId::kBase));
  return number_list<int64_t>(line, "versions", [](const Json& value) { return value.get<int64_t>(); });
}

// The object has its names in the order of the text, which JsonObject loses.
std::vector<rl::ScorePart> reward_parts(std::string_view text, const JsonObject& line) {
  std::vector<rl::ScorePart> parts;
  if (!line.has("rewards")) return parts;
  const OrderedJson ordered = parse_ordered_json(text, line.where());
  for (const auto& [name, value] : ordered.at("rewards").items()) {
    if (!value.is_null() && !value.is_number()) fail(line, "rewards", "numbers or null");
    parts.push_back({.name = name, .value = value.is_null() ? std::nullopt : std::optional(value.get<float>())});
  }
  return parts;
}

// Behind what stands for the prompt's tokens.
template <class T>
void put_behind(std::vector<T>& all, size_t prompt, T nothing, const std::vector<T>& response, const JsonObject& line,
                const char* key, size_t size) {
  if (response.size() != size) fail(line, key, fmt::format("{} values, one per token of the response", size));
  all.assign(prompt, nothing);
  all.insert(all.end(), response.begin(), response.end());
}

void append_mask(std::string& out, std::span<const float> mask) {
  if (std::ranges::all_of(mask, [](float weight) { return weight == 1; })) return;
  out += ",\"loss_mask\":[";
  for (size_t i = 0; i < mask.size(); ++i) fmt::format_to(std::back_inserter(out), "{}{}", i > 0 ? "," : "", mask[i]);
  out += ']';
}

}  // namespace

std::string trajectory_line(int64_t step, const rl::Trajectory& trajectory, bool exact_logprobs) {
  std::string out = sample_line(step, trajectory, {}, nullptr);
  out.pop_back();  // the closing brace
  out += fmt::format(",\"exact_logprobs\":{}", exact_logprobs);
  if (trajectory.baseline != 0) {
    out += ",\"baseline\":";
    append_exact_float(out, trajectory.baseline);
  }
  append_mask(out, std::span(trajectory.mask).subspan(response_begin(trajectory)));
  return out + "}";
}

TrajectoryLine parse_trajectory_line(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  const JsonObject line(json, where);
  const auto number = [](const Json& value) { return value.get<float>(); };
  rl::Trajectory sample{.group = line.integer("group"), .tokens = token_ids(line, "prompt_tokens")};
  const std::vector<int32_t> response = token_ids(line, "tokens");
  const size_t prompt = sample.tokens.size(), size = response.size();
  if (prompt == 0) fail(line, "prompt_tokens", "at least one");
  sample.tokens.insert(sample.tokens.end(), response.begin(), response.end());
  const auto mask =
      line.has("loss_mask") ? number_list<float>(line, "loss_mask", number) : std::vector<float>(size, 1.0f);
  put_behind(sample.mask, prompt, 0.0f, mask, line, "loss_mask", size);
  put_behind(sample.sampled_logprobs, prompt, 0.0f, number_list<float>(line, "sampled_logprobs", number), line,
             "sampled_logprobs", size);
  put_behind(sample.versions, prompt, lora::PolicyId::kBase, response_versions(line, size), line, "versions", size);
  sample.response = line.string("response", "");
  auto row = std::make_shared<rl::RewardRow>();
  row->prompt = line.string("prompt", "");
  row->label = line.string("label", "");
  sample.row = std::move(row);
  sample.index = line.integer("index");
  sample.truncated = line.boolean("truncated", false);
  if (line.has("reward")) sample.reward = static_cast<float>(line.number("reward"));
  sample.baseline = static_cast<float>(line.number("baseline", 0));
  sample.reward_parts = reward_parts(text, line);
  return {.trajectory = std::move(sample),
          .prompt_tokens = prompt,
          .exact_logprobs = line.boolean("exact_logprobs", false)};
}

}  // namespace lockstep::recipes
