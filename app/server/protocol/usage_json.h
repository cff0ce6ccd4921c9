// What a request cost in tokens.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::server {

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

// Of a whole answer: {"prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details",
// "completion_tokens_details"}, the last null and the one before it too unless `details`.
std::string usage_json(const Usage& usage, bool details);
// Of a stream's last chunk: without what is null.
std::string stream_usage_json(const Usage& usage, bool details);

}  // namespace lockstep::server
