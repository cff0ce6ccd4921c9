#include "recipes/live_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/utf8.h"
#include "recipes/run_log.h"
#include "recipes/step_line.h"

namespace lockstep::recipes {

namespace {

constexpr size_t kHistory = 200;
constexpr size_t kSparkColumns = 40;
constexpr size_t kRecent = 10;

constexpr std::pair<const char*, const char*> kShown[] = {{"reward", "reward"},
                                                          {"loss", "loss"},
                                                          {"rewards/margins", "margin"},
                                                          {"response_len", "response tokens"},
                                                          {"truncated", "truncated"},
                                                          {"entropy", "entropy"},
                                                          {"kl", "kl"},
                                                          {"grad_norm", "grad_norm"}};
constexpr std::pair<const char*, const char*> kPhases[] = {
    {"rollout_ms", "rollout"}, {"reward_ms", "reward"}, {"train_ms", "train"}, {"publish_ms", "publish"}};

// The first `columns` characters.
std::string clipped_row(std::string_view row, size_t columns) {
  size_t bytes = 0;
  for (size_t column = 0; column < columns && bytes < row.size(); ++column) bytes += read_utf8(row.substr(bytes)).size;
  return std::string(row.substr(0, bytes));
}

}  // namespace

std::string sparkline(std::span<const double> values, size_t columns) {
  constexpr const char* kBars[] = {"\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
  constexpr double kSteps = 7;
  std::vector<double> means;
  const size_t count = std::min(columns, values.size());
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = i * values.size() / count, end = (i + 1) * values.size() / count;
    double sum = 0;
    for (size_t j = begin; j < end; ++j) sum += values[j];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  double low = INFINITY, high = -INFINITY;
  for (const double mean : means)
    if (std::isfinite(mean)) low = std::min(low, mean), high = std::max(high, mean);
  std::string text;
  for (const double mean : means) {
    if (!std::isfinite(mean))
      text += ' ';
    else
      text += kBars[high > low ? static_cast<int>(std::lround((mean - low) / (high - low) * kSteps)) : 0];
  }
  return text;
}

void LiveTable::add(const OrderedJson& line) {
  if (line.contains("eval")) return;
  const int64_t step = line.value("step", int64_t{0});
  if (step_ == 0) first_ = step - 1;
  step_ = step;
  for (const auto& [key, value] : line.items()) {
    if (!value.is_number()) continue;
    last_[key] = value.get<double>();
    std::deque<double>& history = history_[key];
    history.push_back(value.get<double>());
    if (history.size() > kHistory) history.pop_front();
  }
}

std::string LiveTable::pace() const {
  if (iterations_ <= 0 || step_ == 0) return "";
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  const double each = seconds.count() / static_cast<double>(step_ - first_);
  return fmt::format("{}  step {}/{}  {} left", progress_bar(step_, iterations_), step_, iterations_,
                     duration_text(each * static_cast<double>(iterations_ - step_)));
}

std::string LiveTable::time_row() const {
  double sum = 0;
  for (const auto& [key, name] : kPhases)
    if (const auto found = last_.find(key); found != last_.end()) sum += found->second;
  if (sum <= 0) return "";
  std::string row;
  for (const auto& [key, name] : kPhases)
    if (const auto found = last_.find(key); found != last_.end())
      row += fmt::format("{}{} {:.0f} %", row.empty() ? "" : ", ", name, 100 * found->second / sum);
  if (const auto speed = last_.find("tokens_per_s"); speed != last_.end())
    row += fmt::format("  {} tok/s", short_number(speed->second));
  return fmt::format("{:<18} {}", "time", row);
}

std::vector<std::string> LiveTable::rows(const std::string& doing) const {
  std::vector<std::string> rows = {doing};
  if (std::string bar = pace(); !bar.empty()) rows.push_back(std::move(bar));
  for (const auto& [key, name] : kShown) {
    const auto found = history_.find(key);
    if (found == history_.end()) continue;
    const std::vector<double> values(found->second.begin(), found->second.end());
    const size_t recent = std::min(kRecent, values.size());
    double sum = 0;
    for (size_t i = values.size() - recent; i < values.size(); ++i) sum += values[i];
    rows.push_back(fmt::format("{:<18} {:>8}  mean of {:<2} {:>8}  {}", name, short_number(values.back()), recent,
                               short_number(sum / static_cast<double>(recent)), sparkline(values, kSparkColumns)));
  }
  if (std::string time = time_row(); !time.empty()) rows.push_back(std::move(time));
  for (std::string& row : rows) row = clipped_row(row, kStepLineColumns);
  return rows;
}

}  // namespace lockstep::recipes
