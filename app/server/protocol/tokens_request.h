// What POST /inference/v1/generate reads.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "server/protocol/common_fields.h"

namespace lockstep::server {

struct TokensRequest {
  std::vector<int32_t> tokens;
  std::optional<int64_t> max_tokens;  // default: what is left of the context
  CommonFields common;
};

// ApiError 400.
TokensRequest parse_tokens(const OrderedJson& body, const SamplingRules& rules);

}  // namespace lockstep::server
