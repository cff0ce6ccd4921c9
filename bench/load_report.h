// What a load test found: rates, latencies, fairness, errors by kind.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/json.h"
#include "load_stream.h"

namespace lockstep::bench {

// The value that a share q of `values` does not exceed (nearest rank); 0 when there are none.
double percentile(std::vector<float> values, double q);

class LoadReport {
 public:
  void add(const StreamResult& result);
  size_t num_errors() const;
  // {"requests", "errors": {kind: count}, "tokens_per_s", "ttft_ms": {"p50", "p90", "p99"}, ...}
  OrderedJson json(double wall_s) const;

 private:
  std::map<std::string, size_t> errors_;
  std::vector<float> first_s_, total_s_, gaps_s_, rates_;  // of the streams without error
  int64_t tokens_ = 0;
};

std::string report_text(const OrderedJson& report);

}  // namespace lockstep::bench
