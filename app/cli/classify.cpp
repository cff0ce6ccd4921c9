#include "cli/classify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/known.h"
#include "core/error.h"
#include "core/nearest_name.h"

namespace lockstep::cli {

namespace {

// Cuts argv; tokens before the first flag are positionals. Of a repeated flag the last stays, where it was given last.
std::vector<Occurrence> cut(const Values& args, Values& positionals) {
  std::vector<Occurrence> list;
  for (const std::string& token : args) {
    if (token.size() > 2 && token.starts_with("--")) {
      const size_t equals = token.find('=');
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

bool same_value(std::string_view wanted, const std::string& got) {
  const auto number = read_real(wanted);
  return wanted == got || (number && number == read_real(got));
}

// "*" any, else the value itself.
bool is_later_value(std::string_view later, const std::string& value) {
  return std::ranges::any_of(split_names(later), [&](std::string_view name) { return name == "*" || name == value; });
}

template <typename Table>
auto look_up(const Table& table, std::string_view name) {
  return std::ranges::find_if(table, [&](const auto& row) { return means(row.name, name); });
}

bool is_training(Scripts scripts) {
  return scripts == Scripts::train || scripts == Scripts::sft;
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
  return row != nullptr ? row : engine_flag(name);
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
  for (const std::string& name : engine_flag_names()) add(name);
  for (const ShapeFlag& row : shape_flags()) add(row.name);
  for (const std::string_view name : later_flags()) add(name);
  return names;
}

class Classifier {
 public:
  Classifier(const FlagSet& flags, Scripts scripts, const FlagSet* elsewhere)
      : flags_(flags), scripts_(scripts), elsewhere_(elsewhere) {}

  Classified run(const Values& args, size_t num_positionals) {
    for (Occurrence& occurrence : cut(args, result_.positionals)) place(occurrence);
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
      for (const std::string& value : occurrence.values)
        if (is_later_value(flag->binding.later, value)) return later_.push_back(flag->name + " " + value);
      result_.used.push_back(std::move(occurrence));
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

  void place_compatible(Occurrence& occurrence, const Compatible& row) {
    if (row.arity != Arity::many) take(occurrence, row.arity, result_.positionals);
    for (const std::string& value : occurrence.values) {
      const auto accepted = split_names(row.accepted);
      if (accepted.empty() || std::ranges::any_of(accepted, [&](auto name) { return same_value(name, value); }))
        continue;
      if (is_later_value(row.later, value)) return later_.push_back(occurrence.flag + " " + value);
      throw ConfigError({.what = fmt::format("{} {} is not what this program does", occurrence.flag, value),
                         .where = occurrence.flag,
                         .got = value,
                         .wanted = fmt::format("{}", fmt::join(accepted, " or ")),
                         .attempt = fmt::format("drop the flag: {}", row.line)});
    }
    result_.notes.push_back(fmt::format("{}: {}", occurrence.flag, row.line));
    result_.compatible.push_back(std::move(occurrence));
  }

  std::string hint(const std::string& name) const {
    if (elsewhere_ != nullptr && elsewhere_->find(name) != nullptr) return " (a flag of `lockstep train`)";
    return fmt::format(" (did you mean {}?)", nearest_name(name, known_names(flags_, scripts_)));
  }

  void complain() const {
    std::vector<std::string> parts;
    if (!unknown_.empty()) parts.push_back(fmt::format("unknown: {}", fmt::join(unknown_, ", ")));
    if (!later_.empty()) parts.push_back(fmt::format("not available yet: {}", fmt::join(later_, ", ")));
    if (parts.empty()) return;
    throw ConfigError({.what = fmt::format("{}", fmt::join(parts, "; ")),
                       .attempt = later_.empty() ? "--help lists the flags of a command"
                                                 : "drop what is not available yet, if the run can do without it"});
  }

  const FlagSet& flags_;
  const Scripts scripts_;
  const FlagSet* elsewhere_;
  Classified result_;
  std::vector<std::string> later_, unknown_;
};

}  // namespace

const Occurrence* Classified::given(std::string_view flag) const {
  for (const auto* list : {&used, &compatible})
    for (const Occurrence& occurrence : *list)
      if (occurrence.flag == flag) return &occurrence;
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
