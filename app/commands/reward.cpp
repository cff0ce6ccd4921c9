// lockstep reward: verdicts on responses that are there already.
#include <fmt/format.h>

#include <ostream>

#include "commands/commands.h"
#include "data/dataset.h"
#include "recipes/bad_rows.h"
#include "recipes/prompts.h"
#include "recipes/run_log.h"

namespace lockstep::commands {

namespace {

constexpr const char* kField = "reward";

void check_options(const RewardOptions& options, const data::Dataset& data) {
  if (options.response_key == kField || options.label_key == kField)
    throw ConfigError({.what = "the rewards would take the place of what they are made from",
                       .where = options.label_key == kField ? "--label-key" : "--response-key",
                       .got = kField,
                       .attempt = "another name for this field of " + data.path()});
  if (!options.output.empty() && fs::same_place(options.output, data.path()))
    throw ConfigError({.what = "--output is the input", .where = options.output, .attempt = "another file"});
}

// Rows that were graded, and what came out.
struct Tally {
  int64_t rows = 0, unknown = 0;
  double sum = 0;

  void add(std::optional<float> reward) {
    ++rows;
    if (reward)
      sum += static_cast<double>(*reward);
    else
      ++unknown;
  }
  std::string mean() const {
    const int64_t known = rows - unknown;
    return known == 0 ? "reward undefined: no row has a known one"
                      : fmt::format("reward {:.4f}, mean of {} rows", sum / static_cast<double>(known), known);
  }
};

std::string prompt_of(const data::Row& row, const std::string& key) {
  const auto found = row.json.find(key);
  if (found == row.json.end()) return {};
  return found->is_string() ? found->get<std::string>() : found->dump();
}

// A number of tokens, or a list of them.
int64_t length_of(const data::Dataset& data, const data::Row& row, const std::string& key) {
  if (key.empty()) return 0;
  const auto found = row.json.find(key);
  if (found != row.json.end() && found->is_array()) return std::ssize(*found);
  if (found != row.json.end() && found->is_number_unsigned()) return found->get<int64_t>();
  throw DataError({.what = "the row does not say how long its response is",
                   .where = data.where(row) + ": " + key,
                   .got = found == row.json.end() ? "no such key" : found->dump(),
                   .wanted = "a number of tokens, or a list of them"});
}

std::optional<float> verdict(const RewardOptions& options, const data::Dataset& data, const data::Row& row) {
  const rl::RewardRule rule = recipes::rule_of_row(options.reward, data, row, options.metadata_key);
  const std::string response = data::string_field(data, row, options.response_key);
  const std::string label = rl::reads_label(rule) ? data::label_field(data, row, options.label_key) : "";
  const std::string prompt = prompt_of(row, options.prompt_key);
  const auto reward = rl::grade(rule, {.response = response,
                                       .label = label,
                                       .prompt = prompt,
                                       .length = length_of(data, row, options.length_key),
                                       .group = row.number});
  return reward ? rl::Score::of(*reward).value : std::nullopt;
}

}  // namespace

void run_reward(const RewardOptions& options, const recipes::Control& control) {
  for (const std::string& note : options.notes) *control.info << "note    " << note << "\n";
  data::Dataset data = data::Dataset::open(options.input, {.max_bad_rows = options.max_bad_rows});
  check_options(options, data);
  recipes::RunLog log("", 0, control);
  const Stopwatch watch;
  Tally tally;
  std::string lines;
  while (std::optional<data::Row> row = data.next()) {
    if (control.interrupted())
      throw Cancelled({.what = "interrupted", .where = options.output, .got = "nothing written"});
    data.accept(*row, [&] {
      const std::optional<float> reward = verdict(options, data, *row);
      row->json[kField] = reward ? OrderedJson(static_cast<double>(*reward)) : OrderedJson(nullptr);
      lines += row->json.dump() + "\n";
      tally.add(reward);
    });
    if (options.output.empty()) *control.out << std::exchange(lines, "");
    constexpr int64_t kEvery = 256;
    if (tally.rows % kEvery == 0) log.progress(fmt::format("graded {} rows", tally.rows));
  }
  log.progress("");
  if (!options.output.empty()) fs::write_file_atomic(options.output, lines);
  recipes::report_bad_rows(data.bad_rows(), options.max_bad_rows, *control.info);
  *control.info << fmt::format("graded  {} rows by {} in {}\n", tally.rows, rl::rule_name(options.reward),
                               recipes::duration_text(watch.ms() / 1000));
  if (tally.unknown > 0)
    *control.info << fmt::format("note    {} of unknown reward (null): labels without an answer\n", tally.unknown);
  (options.output.empty() ? *control.info : *control.out) << tally.mean() << "\n";
}

}  // namespace lockstep::commands
