// Metrics of a server. Names and bounds follow vLLM's where it has the metric.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace lockstep::service {

// Cumulative histogram in Prometheus' sense: counts[i] is of values <= bounds[i]; the last count is of all values.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void add(double value);

  std::span<const double> bounds() const { return bounds_; }
  std::span<const int64_t> counts() const { return counts_; }  // cumulative, one more than bounds
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

struct ServingMetrics {
  // now
  int64_t running = 0, waiting = 0;  // samples
  double kv_cache_usage = 0;         // 0 .. 1 of the pool, without blocks that only the prefix cache holds
  int64_t kv_blocks = 0;             // of the pool
  int64_t max_loras = 0;
  std::vector<std::string> running_adapters, waiting_adapters;  // names
  // since the start
  int64_t prompt_tokens = 0, generation_tokens = 0, prefix_queries = 0, prefix_hits = 0, preemptions = 0, steps = 0;
  int64_t failed_steps = 0;                 // which ended the requests that were in them
  int64_t failed_recordings = 0;            // of decode steps on a GPU, which then ran slower
  std::map<std::string, int64_t> finished;  // samples, by "stop", "length", "abort", "error"
  double engine_seconds = 0;                // in steps
  Histogram time_to_first_token{latency_bounds()}, inter_token_latency{token_bounds()},
      e2e_request_latency{latency_bounds()}, request_queue_time{latency_bounds()},
      request_prefill_time{latency_bounds()}, request_decode_time{latency_bounds()};  // seconds
  Histogram request_prompt_tokens{count_bounds()}, request_generation_tokens{count_bounds()},
      iteration_tokens{count_bounds()};

  static std::vector<double> latency_bounds();
  static std::vector<double> token_bounds();
  static std::vector<double> count_bounds();
};

}  // namespace lockstep::service
