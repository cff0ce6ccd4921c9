#include "cli/eval_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "cli/reward_flags.h"
#include "cli/yaml.h"
#include "core/error.h"

namespace lockstep::cli {

namespace {

constexpr const char* kKeys =
    "rm_type, input_key, prompt_key, label_key, metadata_key, tool_key, n_samples_per_eval_prompt, temperature, top_p, "
    "top_k, max_response_len, min_new_tokens, stop, stop_token_ids, metadata_overrides";

// A value and where it stands, for messages.
struct Value {
  const OrderedJson& json;
  const std::string& where;

  [[noreturn]] void refuse(const std::string& wanted) const {
    throw ConfigError({.what = "bad value in an evaluation config",
                       .where = where,
                       .got = json_text(json).substr(0, 80),
                       .wanted = wanted});
  }
  std::string text() const {
    if (!json.is_string()) refuse("a text");
    const std::string value = json.get<std::string>();
    if (value.find("${") != std::string::npos) refuse("a text without ${...}, which is not filled in here");
    return value;
  }
  double number() const {
    if (!json.is_number()) refuse("a number");
    return json.get<double>();
  }
  int64_t integer() const {
    if (!json.is_number_integer()) refuse("an integer");
    return json.get<int64_t>();
  }
  template <class Item, class Read>
  std::vector<Item> list(const Read& read) const {
    if (!json.is_array()) return {read(*this)};
    std::vector<Item> items;
    for (const OrderedJson& item : json) items.push_back(read(Value{item, where}));
    return items;
  }
};

void set_field(recipes::EvalSet& set, const std::string& key, const Value& value) {
  if (key == "rm_type") {
    set.reward = reward_choices(value.where, value.text());
  } else if (key == "input_key" || key == "prompt_key") {
    set.input_key = value.text();
  } else if (key == "label_key") {
    set.label_key = value.text();
  } else if (key == "metadata_key") {
    set.metadata_key = value.text();
  } else if (key == "tool_key") {
    set.tool_key = value.text();
  } else if (key == "n_samples_per_eval_prompt") {
    set.samples = value.integer();
    if (*set.samples < 1) value.refuse("at least 1");
  } else if (key == "temperature") {
    set.temperature = static_cast<float>(value.number());
  } else if (key == "top_p") {
    set.top_p = static_cast<float>(value.number());
  } else if (key == "top_k") {
    set.top_k = value.integer();
  } else if (key == "max_response_len") {
    set.max_tokens = value.integer();
  } else if (key == "min_new_tokens") {
    set.min_tokens = value.integer();
  } else if (key == "stop") {
    set.stop = value.list<std::string>([](const Value& item) { return item.text(); });
  } else if (key == "stop_token_ids") {
    set.stop_token_ids = value.list<int32_t>([](const Value& item) { return static_cast<int32_t>(item.integer()); });
  } else if (key == "metadata_overrides") {
    if (!value.json.is_object()) value.refuse("a mapping");
    set.metadata = value.json;
  } else {
    throw ConfigError({.what = "unknown key of an evaluation set", .where = value.where, .got = key, .wanted = kKeys});
  }
}

void set_fields(recipes::EvalSet& set, const OrderedJson& fields, const std::string& where) {
  for (const auto& [key, value] : fields.items()) {
    if (value.is_null() || key == "name" || key == "path") continue;
    set_field(set, key, {value, where + ", " + key});
  }
}

std::string required_text(const OrderedJson& fields, const char* key, const std::string& where) {
  if (!fields.contains(key) || fields[key].is_null())
    throw ConfigError({.what = "an evaluation set lacks a key", .where = where, .wanted = key});
  return Value{fields[key], where}.text();
}

const OrderedJson& require_object(const OrderedJson& value, const std::string& where) {
  if (!value.is_object()) Value{value, where}.refuse("a mapping");
  return value;
}

// Sets as a list, each with its name.
OrderedJson listed(const OrderedJson& datasets, const std::string& where) {
  if (datasets.is_array()) return datasets;
  if (!datasets.is_object()) Value{datasets, where}.refuse("a list of sets, or a mapping from their names");
  OrderedJson list = OrderedJson::array();
  for (const auto& [name, fields] : datasets.items()) {
    OrderedJson set = require_object(fields, where + ", " + name);
    if (!set.contains("name")) set["name"] = name;
    list.push_back(std::move(set));
  }
  return list;
}

}  // namespace

void check_best_set(const std::vector<recipes::EvalSet>& sets, const std::string& name, bool save_best) {
  if (name.empty()) return;
  if (!save_best) throw ConfigError({.what = "--save-best-set needs --save-best", .where = "--save-best-set"});
  std::vector<std::string> names;
  for (const recipes::EvalSet& set : sets) names.push_back(set.name);
  if (std::ranges::find(names, name) == names.end())
    throw ConfigError({.what = "no evaluation set of this name",
                       .where = "--save-best-set",
                       .got = name,
                       .wanted = fmt::format("{}", fmt::join(names, ", "))});
}

std::vector<recipes::EvalSet> read_eval_config(const std::string& path) {
  const OrderedJson file = read_yaml(path);  // JSON is YAML
  const OrderedJson& config = require_object(file, path).contains("eval") ? require_object(file["eval"], path) : file;
  for (const auto& [key, value] : config.items())
    if (key != "defaults" && key != "datasets")
      throw ConfigError(
          {.what = "unknown key of an evaluation config", .where = path, .got = key, .wanted = "defaults, datasets"});
  const OrderedJson none = OrderedJson::object();
  const bool has_defaults = config.contains("defaults") && !config["defaults"].is_null();
  const OrderedJson& defaults = has_defaults ? require_object(config["defaults"], path + ": defaults") : none;
  std::vector<recipes::EvalSet> sets;
  std::set<std::string> names;
  for (const OrderedJson& fields :
       listed(config.contains("datasets") ? config["datasets"] : none, path + ": datasets")) {
    const std::string number = fmt::format("{}: set {}", path, sets.size() + 1);
    const std::string name = required_text(require_object(fields, number), "name", number), where = path + ": " + name;
    if (!names.insert(name).second)
      throw ConfigError({.what = "two evaluation sets of one name", .where = path, .got = name});
    recipes::EvalSet set{.name = name, .path = required_text(fields, "path", where)};
    set_fields(set, defaults, path + ": defaults");
    set_fields(set, fields, where);
    sets.push_back(std::move(set));
  }
  if (sets.empty())
    throw ConfigError({.what = "an evaluation config without a set", .where = path, .wanted = "datasets"});
  return sets;
}

}  // namespace lockstep::cli
