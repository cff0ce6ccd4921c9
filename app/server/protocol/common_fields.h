// The fields that completions, chats and token requests have in common.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/protocol/answer_options.h"
#include "server/protocol/sampling_json.h"

namespace lockstep::server {

struct CommonFields {
  std::optional<std::string> model, request_id;
  SamplingFields sampling;
  AnswerOptions options;
  VersionFields version;
};

// Events of a stream repeat the request's id, and choices the role. ApiError 400 for more than 1,024 bytes.
void check_repeated(std::string_view text, const std::string& name);

// ApiError 400.
CommonFields read_common(const Fields& fields, const SamplingRules& rules, bool tokens_as_ids);

}  // namespace lockstep::server
