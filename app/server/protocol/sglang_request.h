// What SGLang's POST /generate reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "server/protocol/common_fields.h"

namespace lockstep::server {

struct SglangRequest {
  std::variant<std::vector<std::string>, std::vector<std::vector<int32_t>>> prompts;
  bool batch = false;                                // prompts came as a list: the answer is one too
  std::vector<std::optional<std::string>> adapters;  // of each prompt
  std::vector<std::string> ids;                      // of each prompt; empty: random
  std::optional<int64_t> max_tokens;                 // 0: the prompt is computed, and nothing more
  bool to_context = false;                           // "max_new_tokens": null
  std::vector<std::optional<uint64_t>> seeds;        // of each prompt; empty: all have that of `common`
  bool text_in_logprobs = false;
  int64_t logprob_start = -1;  // first token of the prompt whose log-prob is returned; -1: none
  CommonFields common;
};

// ApiError 400.
SglangRequest parse_sglang(const OrderedJson& body, const SamplingRules& rules);

}  // namespace lockstep::server
