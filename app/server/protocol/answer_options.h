// How an answer is to be written, apart from what is generated.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "server/protocol/fields.h"

namespace lockstep::server {

struct AnswerOptions {
  bool stream = false;
  bool include_usage = false, continuous_usage = false;  // of a stream
  bool echo = false;
  bool include_stop = false;  // the stop string or token stays in the text
  bool skip_special = true;   // special tokens have no text
  bool return_token_ids = false;
  bool return_prompt_text = false;
  bool cumulative = false;             // every event of a stream repeats all of the answer so far
  bool tokens_as_ids = false;          // "token_id:123" for tokens in log-probs
  bool return_token_versions = false;  // Lockstep's: the adapter version of each token
  std::optional<int64_t> logprobs;     // of each token, with so many of the most likely ones
  // What the route calls them.
  std::string_view logprobs_name = "logprobs", prompt_logprobs_name = "prompt_logprobs";
};

// stream, stream_options, echo, include_stop_str_in_output, skip_special_tokens, return_token_ids,
// return_tokens_as_token_ids (else `tokens_as_ids`), return_token_versions. ApiError 400.
AnswerOptions read_answer_options(const Fields& fields, bool tokens_as_ids);

// Lockstep's: which adapter version makes the answer.
struct VersionFields {
  std::optional<int64_t> pinned;  // "adapter_version"
  bool follow = false;            // "follow_adapter": a newer one from the next token on
};
VersionFields read_version_fields(const Fields& fields);

}  // namespace lockstep::server
