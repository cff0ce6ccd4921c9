#include "server/protocol/usage_json.h"

#include <fmt/format.h>

namespace lockstep::server {

namespace {

std::string counts(const Usage& usage) {
  return fmt::format(R"({{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{})", usage.prompt_tokens,
                     usage.prompt_tokens + usage.completion_tokens, usage.completion_tokens);
}

std::string details_json(const Usage& usage) {
  return fmt::format(R"({{"cached_tokens":{}}})", usage.cached_tokens);
}

}  // namespace

std::string usage_json(const Usage& usage, bool details) {
  return counts(usage) + R"(,"prompt_tokens_details":)" + (details ? details_json(usage) : "null") +
         R"(,"completion_tokens_details":null})";
}

std::string stream_usage_json(const Usage& usage, bool details) {
  return counts(usage) + (details ? R"(,"prompt_tokens_details":)" + details_json(usage) : "") + "}";
}

}  // namespace lockstep::server
