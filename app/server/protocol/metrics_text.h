// GET /metrics: Prometheus' text format with vLLM's names, and lockstep:... for what vLLM has not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "service/serving.h"

namespace lockstep::server {

// Every series has the labels model_name and engine="0"; a counter's name ends in _total.
std::string metrics_text(const service::ServingMetrics& metrics, const std::vector<versions::Policy>& adapters,
                         const std::string& model_name);

}  // namespace lockstep::server
