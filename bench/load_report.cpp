#include "load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::bench {

namespace {

OrderedJson milliseconds(const std::vector<float>& seconds, std::initializer_list<int> percents) {
  OrderedJson found;
  for (const int percent : percents) {
    const double ms = percentile(seconds, percent / 100.0) * 1000;
    found["p" + std::to_string(percent)] = std::round(ms * 1000) / 1000;
  }
  return found;
}

double ratio(double a, double b) {
  return b > 0 ? a / b : 0;
}

}  // namespace

double percentile(std::vector<float> values, double q) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(values.size())));
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

void LoadReport::add(const StreamResult& result) {
  if (!result.error.empty()) return void(++errors_[result.error]);
  tokens_ += result.tokens;
  first_s_.push_back(static_cast<float>(result.first_s));
  total_s_.push_back(static_cast<float>(result.total_s));
  gaps_s_.insert(gaps_s_.end(), result.gaps.begin(), result.gaps.end());
  rates_.push_back(static_cast<float>(ratio(static_cast<double>(result.tokens), result.total_s)));
}

size_t LoadReport::num_errors() const {
  size_t count = 0;
  for (const auto& [kind, num] : errors_) count += num;
  return count;
}

OrderedJson LoadReport::json(double wall_s) const {
  const size_t completed = total_s_.size();
  OrderedJson errors = OrderedJson::object();
  for (const auto& [kind, num] : errors_) errors[kind] = num;
  const auto [slowest, fastest] = std::minmax_element(rates_.begin(), rates_.end());
  const bool any = !rates_.empty();
  return {{"requests", completed + num_errors()},
          {"completed", completed},
          {"num_errors", num_errors()},
          {"errors", errors},
          {"wall_s", wall_s},
          {"tokens", tokens_},
          {"tokens_per_s", ratio(static_cast<double>(tokens_), wall_s)},
          {"requests_per_s", ratio(static_cast<double>(completed), wall_s)},
          {"ttft_ms", milliseconds(first_s_, {50, 90, 99})},
          {"inter_token_ms", milliseconds(gaps_s_, {50, 90, 99})},
          {"end_to_end_ms", milliseconds(total_s_, {50, 99})},
          {"fairness",
           {{"slowest_over_fastest_stream", any ? ratio(*slowest, *fastest) : 0},
            {"end_to_end_p99_over_p50", ratio(percentile(total_s_, 0.99), percentile(total_s_, 0.5))}}}};
}

std::string report_text(const OrderedJson& report) {
  const auto row = [&](const char* name, const char* key) {
    std::string line = fmt::format("{:<18}", name);
    for (const auto& [percent, ms] : report.at(key).items())
      line += fmt::format("  {} {:.2f} ms", percent, ms.get<double>());
    return line + "\n";
  };
  std::string text = fmt::format("{} of {} requests in {:.2f} s: {:.1f} tokens/s, {:.2f} requests/s\n",
                                 report.at("completed").get<size_t>(), report.at("requests").get<size_t>(),
                                 report.at("wall_s").get<double>(), report.at("tokens_per_s").get<double>(),
                                 report.at("requests_per_s").get<double>());
  text +=
      row("first token", "ttft_ms") + row("between tokens", "inter_token_ms") + row("whole request", "end_to_end_ms");
  const OrderedJson& fairness = report.at("fairness");
  text += fmt::format("{:<18}  slowest/fastest stream {:.3f}  p99/p50 of whole requests {:.3f}\n", "fairness",
                      fairness.at("slowest_over_fastest_stream").get<double>(),
                      fairness.at("end_to_end_p99_over_p50").get<double>());
  for (const auto& [kind, num] : report.at("errors").items()) {
    text += fmt::format("error              {} x {}\n", num.get<size_t>(), kind);
  }
  return text;
}

}  // namespace lockstep::bench
