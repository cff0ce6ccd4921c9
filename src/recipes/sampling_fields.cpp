#include "recipes/sampling_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <variant>
#include <vector>

namespace lockstep::recipes {

namespace {

using rollout::SamplingParams;

struct Field {
  const char* name;
  std::variant<float SamplingParams::*, int64_t SamplingParams::*, uint64_t SamplingParams::*> member;
};
const Field kFields[] = {{"temperature", &SamplingParams::temperature},
                         {"top_p", &SamplingParams::top_p},
                         {"top_k", &SamplingParams::top_k},
                         {"min_p", &SamplingParams::min_p},
                         {"max_tokens", &SamplingParams::max_tokens},
                         {"min_tokens", &SamplingParams::min_tokens},
                         {"repetition_penalty", &SamplingParams::repetition_penalty},
                         {"frequency_penalty", &SamplingParams::frequency_penalty},
                         {"presence_penalty", &SamplingParams::presence_penalty},
                         {"seed", &SamplingParams::seed}};

[[noreturn]] void bad_value(const std::string& name, std::string_view value, const char* wanted) {
  throw ConfigError({.what = "bad value", .where = name, .got = std::string(value), .wanted = wanted});
}

std::vector<std::string> stop_strings(std::string_view value) {
  if (value.empty()) return {};
  const Json json = Json::parse(value, nullptr, false);
  if (!json.is_array()) return {std::string(value)};
  std::vector<std::string> stops;
  for (const Json& stop : json) {
    if (!stop.is_string()) bad_value("stop", value, "a list of strings, such as [\"\\n\\n\"], or one text");
    stops.push_back(stop.get<std::string>());
  }
  return stops;
}

void set_number(SamplingParams& params, const Field& field, std::string_view value) {
  const Json json = Json::parse(value, nullptr, false);
  if (const auto* real = std::get_if<float SamplingParams::*>(&field.member)) {
    if (!json.is_number()) bad_value(field.name, value, "a number");
    params.** real = static_cast<float>(json.get<double>());
    return;
  }
  if (!json.is_number_integer() || (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX))
    bad_value(field.name, value, "a whole number");
  if (const auto* count = std::get_if<int64_t SamplingParams::*>(&field.member))
    params.** count = json.get<int64_t>();
  else if (json.get<int64_t>() < 0)
    bad_value(field.name, value, "a whole number, at least 0");
  else
    params.*std::get<uint64_t SamplingParams::*>(field.member) = json.get<uint64_t>();
}

}  // namespace

OrderedJson sampling_json(const SamplingParams& params) {
  OrderedJson json = OrderedJson::object();
  for (const Field& field : kFields)
    std::visit(
        [&](auto member) {
          // Floats as people wrote them: 0.7, not the nearest double of the nearest float.
          if constexpr (std::is_same_v<decltype(member), float SamplingParams::*>)
            json[field.name] = OrderedJson::parse(fmt::format("{}", params.*member));
          else
            json[field.name] = params.*member;
        },
        field.member);
  json["stop"] = params.stop;
  json["stop_token_ids"] = params.stop_token_ids;
  return json;
}

void set_sampling_field(SamplingParams& params, const std::string& name, std::string_view value) {
  SamplingParams changed = params;
  if (name == "stop") {
    changed.stop = stop_strings(value);
  } else {
    std::vector<std::string> names;
    const Field* found = nullptr;
    for (const Field& field : kFields) {
      names.emplace_back(field.name);
      if (name == field.name) found = &field;
    }
    if (found == nullptr)
      throw ConfigError(
          {.what = "no such sampling field", .got = name, .wanted = fmt::format("{} or stop", fmt::join(names, ", "))});
    set_number(changed, *found, value);
  }
  rollout::validate(changed);
  params = std::move(changed);
}

}  // namespace lockstep::recipes
