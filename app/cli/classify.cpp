#include "cli/classify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/nearest_name.h"
#include "recipes/options.h"

namespace lockstep::cli {

namespace {

// Cuts argv; tokens before the first flag are positionals. Of a repeated flag the last stays, where it was given last.
std::vector<Occurrence> cut(const Values& args, Values& positionals) {
  std::vector<Occurrence> list;
  for (const std::string& token : args) {
    if (token.size() > 2 && token.starts_with("--")) {
      // A script that quotes "--flag value" as one word means the flag and its value.
      const size_t equals = token.find_first_of("= ");
      Occurrence next{.flag = token.substr(0, equals), .values = {}, .joined = equals != std::string::npos};
      if (next.joined) next.values.push_back(token.substr(equals + 1));
      std::erase_if(list, [&](const Occurrence& earlier) { return earlier.flag == next.flag; });
      list.push_back(std::move(next));
    } else {
      (list.empty() ? positionals : list.back().values).push_back(token);
    }
  }
  return list;
}

// Leaves the flag the values it takes; what is left over belongs to the command.
void take(Occurrence& occurrence, Arity arity, Values& positionals) {
  Values& values = occurrence.values;
  if (arity == Arity::none && occurrence.joined)
    throw ConfigError({.what = occurrence.flag + " takes no value", .where = occurrence.flag, .got = values[0]});
  if (arity != Arity::none && values.empty())
    throw ConfigError({.what = occurrence.flag + " needs a value",
                       .where = occurrence.flag,
                       .attempt = "write a value that starts with -- as " + occurrence.flag + "=--value"});
  const size_t most = arity == Arity::none ? 0 : arity == Arity::one || occurrence.joined ? 1 : values.size();
  if (values.size() <= most) return;
  positionals.insert(positionals.end(), values.begin() + static_cast<std::ptrdiff_t>(most), values.end());
  values.resize(most);
}

// '#' any number, '*' anything, else the value itself, a number as a number.
bool is_one_of(std::string_view values, const std::string& got) {
  const auto number = read_real(got);
  return std::ranges::any_of(split_names(values), [&](std::string_view value) {
    return value == "*" || value == got || (number && (value == "#" || read_real(value) == number));
  });
}

// What is_one_of takes, in words.
std::vector<std::string> shown_values(std::string_view values) {
  std::vector<std::string> shown;
  for (const std::string_view value : split_names(values))
    shown.emplace_back(value == "#" ? "a number" : value == "*" ? "any other" : value);
  return shown;
}

// A layout is a count: one is here, more are not yet.
bool is_larger_layout(const Compatible& row, const std::string& value) {
  const auto count = read_real(value);
  return row.effect == Effect::layout && row.accepted == "1" && count && *count > 1 && *count == std::floor(*count);
}

Values split_list(const Values& values) {
  Values names;
  for (const std::string& value : values)
    for (size_t begin = 0; begin <= value.size();) {
      const size_t end = std::min(value.find(',', begin), value.size());
      const std::string name = value.substr(begin, end - begin);
      if (!name.empty()) names.push_back(name.starts_with("--") ? name : "--" + name);
      begin = end + 1;
    }
  return names;
}

constexpr std::string_view kNoEngine = "supervised training starts no engine";
constexpr Compatible kUnusedEngine = {"", Arity::many, kNoEngine};

template <typename Table>
auto look_up(const Table& table, std::string_view name) {
  return std::ranges::find_if(table, [&](const auto& row) { return means(row.name, name); });
}

bool is_training(Scripts scripts) {
  return scripts == Scripts::train || scripts == Scripts::sft;
}

// "--vllm-...": a flag of scripts for a kind of server.
bool is_of_server(std::string_view name) {
  return std::ranges::any_of(rollout::kEngines, [&](const rollout::EngineFacts& engine) {
    return name.starts_with(fmt::format("--{}-", engine.name));
  });
}

const Compatible* find_compatible(std::string_view name, Scripts scripts) {
  if (scripts == Scripts::none) return nullptr;
  const auto search = [&](std::span<const Compatible> table) {
    const auto row = look_up(table, name);
    return row == table.end() ? nullptr : &*row;
  };
  if (scripts == Scripts::serve) return search(serve_compatible_flags());
  const Compatible* row = scripts == Scripts::sft ? search(sft_compatible_flags()) : nullptr;
  if (row == nullptr) row = search(compatible_flags());
  if (row == nullptr) row = engine_flag(name);
  return row != nullptr && is_of_server(name) && scripts == Scripts::sft ? &kUnusedEngine : row;
}

const ClaimFlag* find_claim(std::string_view name, Scripts scripts) {
  const auto table = scripts == Scripts::serve ? serve_claim_flags() : claim_flags();
  const auto row = scripts == Scripts::none ? table.end() : look_up(table, name);
  return row == table.end() ? nullptr : &*row;
}

bool judged_without_engine(Claim claim, std::string_view name) {
  return claim == Claim::weight_type && !is_of_server(name);
}

bool is_later_flag(std::string_view name, Scripts scripts) {
  const auto in = [&](std::span<const std::string_view> table) {
    return std::ranges::any_of(table, [&](std::string_view pattern) { return means(pattern, name); });
  };
  return (scripts == Scripts::sft && in(sft_later_flags())) || (is_training(scripts) && in(later_flags()));
}

std::vector<std::string> known_names(const FlagSet& flags, Scripts scripts) {
  std::vector<std::string> names = {"--help"};
  const auto add = [&](std::string_view name) {
    if (!name.ends_with('*')) names.emplace_back(name);
  };
  for (const FlagSet::Group& group : flags.groups())
    for (const Flag& flag : group.flags) add(flag.name);
  if (scripts == Scripts::serve)
    for (const Compatible& row : serve_compatible_flags()) add(row.name);
  if (!is_training(scripts)) return names;
  if (scripts == Scripts::sft)
    for (const Compatible& row : sft_compatible_flags()) add(row.name);
  for (const Compatible& row : compatible_flags()) add(row.name);
  for (const ClaimFlag& row : claim_flags()) add(row.name);
  for (const std::string& name : engine_flag_names()) add(name);
  for (const ShapeFlag& row : shape_flags()) add(row.name);
  for (const std::string_view name : later_flags()) add(name);
  return names;
}

// Functions that slime and miles call in the place of a stage, or around one.
bool is_python_hook(std::string_view name) {
  name = name.substr(0, name.find(' '));  // a value may follow
  constexpr std::string_view kHooks[] = {"--rollout-function-path",
                                         "--rollout-all-samples-process-path",
                                         "--rollout-data-postprocess-path",
                                         "--rollout-sample-filter-path",
                                         "--rollout-sample-hook-path",
                                         "--buffer-filter-path",
                                         "--data-source-path",
                                         "--eval-function-path"};
  return std::ranges::find(kHooks, name) != std::end(kHooks) ||
         (name.starts_with("--custom-") && name.ends_with("-path") && name != "--custom-config-path");
}

class Classifier {
 public:
  Classifier(const FlagSet& flags, Scripts scripts, const FlagSet* elsewhere)
      : flags_(flags), scripts_(scripts), elsewhere_(elsewhere) {}

  Classified run(const Values& args, size_t num_positionals) {
    std::vector<Occurrence> list = cut(args, result_.positionals);
    if (flags_.find(kWithout) != nullptr)
      for (const Occurrence& occurrence : list)
        if (occurrence.flag == kWithout) without_ = split_list(occurrence.values);
    for (Occurrence& occurrence : list) place(occurrence);
    check_without();
    complain();
    if (result_.positionals.size() > num_positionals)
      throw ConfigError({.what = "unexpected argument",
                         .got = result_.positionals[num_positionals],
                         .attempt = "every value follows its flag; quote values with spaces; --help lists the flags"});
    return std::move(result_);
  }

 private:
  void place(Occurrence& occurrence) {
    if (const Flag* flag = flags_.find(occurrence.flag)) {
      take(occurrence, flag->binding.arity, result_.positionals);
      const Compatible* row = find_compatible(occurrence.flag, scripts_);
      if (row != nullptr && is_left_out(occurrence, *row)) return leave_out(occurrence, occurrence.flag, *row);
      for (const std::string& value : occurrence.values)
        if (is_one_of(flag->binding.later, value)) return later_.push_back(flag->name + " " + value);
      result_.used.push_back(std::move(occurrence));
    } else if (const ClaimFlag* claim = find_claim(occurrence.flag, scripts_)) {
      place_claim(occurrence, *claim);
    } else if (const Compatible* row = find_compatible(occurrence.flag, scripts_)) {
      place_compatible(occurrence, *row);
    } else if (const auto shape = look_up(shape_flags(), occurrence.flag);
               is_training(scripts_) && shape != shape_flags().end()) {
      take(occurrence, shape->arity, result_.positionals);
      result_.shape.emplace_back(occurrence.flag.substr(2), occurrence.values.empty() ? "true" : occurrence.values[0]);
    } else if (is_later_flag(occurrence.flag, scripts_)) {
      later_.push_back(occurrence.flag);
    } else {
      unknown_.push_back(occurrence.flag + hint(occurrence.flag));
    }
  }

  bool is_left_out(const Occurrence& occurrence, const Compatible& row) const {
    return row.effect == Effect::told && std::ranges::count(without_, occurrence.flag) > 0;
  }

  void place_claim(Occurrence& occurrence, const ClaimFlag& row) {
    take(occurrence, row.arity, result_.positionals);
    if (scripts_ == Scripts::sft && !judged_without_engine(row.claim, row.name))
      return note(occurrence.flag, kNoEngine);
    if (row.arity == Arity::none) occurrence.values = {std::string(row.value)};
    for (const std::string& value : occurrence.values)
      if (is_one_of(row.later, value)) return later_.push_back(occurrence.flag + " " + value);
    result_.claims.push_back({std::move(occurrence), row.claim});
  }

  void place_compatible(Occurrence& occurrence, const Compatible& row) {
    if (row.arity != Arity::many) take(occurrence, row.arity, result_.positionals);
    if (row.effect == Effect::report || is_left_out(occurrence, row))
      return leave_out(occurrence, occurrence.flag, row);
    for (const std::string& value : occurrence.values) {
      if (row.accepted.empty() && row.later.empty()) continue;
      if (is_one_of(row.accepted, value)) continue;
      const std::string shown = occurrence.flag + " " + value;
      if (is_one_of(row.later, value) || is_larger_layout(row, value)) return leave_out(occurrence, shown, row);
      const auto later = shown_values(row.later);
      throw ConfigError(
          {.what = shown + " is not what this program does",
           .where = occurrence.flag,
           .got = value,
           .wanted = fmt::format("{}{}", fmt::join(shown_values(row.accepted), " or "),
                                 later.empty() ? "" : fmt::format(" (not available yet: {})", fmt::join(later, ", "))),
           .attempt = fmt::format("drop the flag: {}", row.line)});
    }
    note(occurrence.flag, row.line);
    result_.compatible.push_back(std::move(occurrence));
  }

  // What is not available yet, unless --without leaves it out.
  void leave_out(const Occurrence& occurrence, const std::string& shown, const Compatible& row) {
    if (row.effect == Effect::none) return later_.push_back(shown);
    if (std::ranges::count(without_, occurrence.flag) > 0)
      return note(shown, fmt::format("left out (--without): {}", row.line));
    later_.push_back(shown);
    droppable_.push_back(occurrence.flag.substr(2));
  }

  void note(const std::string& flag, std::string_view line) {
    result_.notes.push_back(fmt::format("{}: {}", flag, line));
  }

  void check_without() const {
    for (const std::string& flag : without_) {
      const Compatible* row = find_compatible(flag, scripts_);
      if (row != nullptr && row->effect != Effect::none) continue;
      throw ConfigError(
          {.what = flag + " is no flag that a run can do without",
           .where = std::string(kWithout),
           .got = flag.substr(2),
           .wanted = "flags that change no result: layouts of processes and devices, and reports to others",
           .attempt = "take the flag itself out of the command, if that is what is wanted"});
    }
  }

  // Of what transformers and TRL call it, or else the nearest name.
  std::string hint(const std::string& name) const {
    constexpr std::pair<std::string_view, std::string_view> kOfTransformers[] = {
        {"--beta", "--dpo-beta"},
        {"--dataset-name", "--prompt-data"},
        {"--learning-rate", "--lr"},
        {"--lora-r", "--lora-rank"},
        {"--lr-scheduler-type", "--lr-decay-style"},
        {"--max-completion-length", "--rollout-max-response-len"},
        {"--max-grad-norm", "--clip-grad"},
        {"--max-length", "--max-seq-length"},
        {"--max-steps", "--train-iters"},
        {"--model-name-or-path", "--hf-checkpoint"},
        {"--num-generations", "--n-samples-per-prompt"},
        {"--num-train-epochs", "--num-epoch"},
        {"--output-dir", "--save"},
        {"--per-device-train-batch-size", "--global-batch-size"},
        {"--resume-from-checkpoint", "--load"},
        {"--save-steps", "--save-interval"},
        {"--warmup-ratio", "--lr-warmup-fraction"},
        {"--warmup-steps", "--lr-warmup-iters"},
    };
    std::string dashed = name;
    std::ranges::replace(dashed, '_', '-');
    for (const auto& [theirs, ours] : kOfTransformers)
      if (dashed == theirs && flags_.find(ours) != nullptr) return fmt::format(" (here it is called {})", ours);
    if (elsewhere_ != nullptr && elsewhere_->find(name) != nullptr) return " (a flag of `lockstep train`)";
    return fmt::format(" (did you mean {}?)", nearest_name(name, known_names(flags_, scripts_)));
  }

  void complain() const {
    std::vector<std::string> parts;
    if (!unknown_.empty()) parts.push_back(fmt::format("unknown: {}", fmt::join(unknown_, ", ")));
    std::vector<std::string> hooks, others;
    for (const std::string& name : later_)
      if (is_python_hook(name))
        hooks.push_back(name.substr(0, name.find(' ')));
      else
        others.push_back(name);
    if (!others.empty()) parts.push_back(fmt::format("not available yet: {}", fmt::join(others, ", ")));
    if (!hooks.empty()) parts.push_back(fmt::format("Python is not run for: {}", fmt::join(hooks, ", ")));
    if (parts.empty()) return;
    throw ConfigError({.what = fmt::format("{}", fmt::join(parts, "; ")), .attempt = attempt()});
  }

  std::string attempt() const {
    if (later_.empty()) return "--help lists the flags of a command";
    if (std::ranges::all_of(later_, is_python_hook))
      return "--custom-rm-path, the one function of Python that is run; flags for what the others do (docs/rl.md); or "
             "a "
             "program around `lockstep`";
    if (droppable_.empty() || flags_.find(kWithout) == nullptr)
      return "drop what is not available yet, if the run can do without it";
    Values names = without_;  // what is left out already stays left out
    for (std::string& name : names) name = name.substr(2);
    names.insert(names.end(), droppable_.begin(), droppable_.end());
    const bool all = droppable_.size() == later_.size();
    return fmt::format("{} {} {}",
                       all ? "the run without them gives the same results:" : "what changes no result:", kWithout,
                       fmt::join(names, ","));
  }

  const FlagSet& flags_;
  const Scripts scripts_;
  const FlagSet* elsewhere_;
  Classified result_;
  Values without_;  // flags with their dashes
  std::vector<std::string> later_, unknown_;
  Values droppable_;  // of later_, names that --without takes
};

}  // namespace

const Occurrence* Classified::given(std::string_view flag) const {
  for (const auto* list : {&used, &compatible})
    for (const Occurrence& occurrence : *list)
      if (occurrence.flag == flag) return &occurrence;
  for (const MadeClaim& made : claims)
    if (made.flag.flag == flag) return &made.flag;
  return nullptr;
}

Classified classify(const Values& args, const FlagSet& flags, Scripts scripts, const FlagSet* elsewhere,
                    size_t num_positionals) {
  return Classifier(flags, scripts, elsewhere).run(args, num_positionals);
}

void bind(const Classified& classified, const FlagSet& flags) {
  for (const Occurrence& occurrence : classified.used)
    flags.find(occurrence.flag)->binding.set(occurrence.flag, occurrence.values);
}

}  // namespace lockstep::cli
