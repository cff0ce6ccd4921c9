// How an answer is written, apart from what is generated.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "server/protocol/fields.h"

namespace lockstep::server {

struct AnswerOptions {
  bool stream = false;
  bool include_usage = false, continuous_usage = false;  // for streams
  bool echo = false;
  bool include_stop = false;  // keep the stop string or token in the text
  bool skip_special = true;   // leave special tokens out of the text
  bool return_token_ids = false;
  bool return_prompt_text = false;
  bool cumulative = false;             // every event of a stream repeats the whole answer so far
  bool tokens_as_ids = false;          // "token_id:123" for tokens in log-probs
  bool return_token_versions = false;  // Lockstep's own: the adapter version of each token
  std::optional<int64_t> logprobs;     // for each token, with so many of the most likely ones
  // The names under which the route reports them.
  std::string_view logprobs_name = "logprobs", prompt_logprobs_name = "prompt_logprobs";
};

// stream, stream_options, echo, include_stop_str_in_output, skip_special_tokens, return_token_ids,
// return_tokens_as_token_ids (else `tokens_as_ids`), return_token_versions. ApiError 400.
AnswerOptions read_answer_options(const Fields& fields, bool tokens_as_ids);

// Lockstep's own: which adapter version generates the answer.
struct VersionFields {
  std::optional<int64_t> pinned;  // "adapter_version"
  bool follow = false;            // "follow_adapter": switch to a newer version at the next token
};
VersionFields read_version_fields(const Fields& fields);

}  // namespace lockstep::server
