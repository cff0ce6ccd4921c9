// What completions, chats and token requests have in common.
#pragma once

#include <optional>
#include <string>

#include "server/answer_options.h"
#include "server/sampling_json.h"

namespace lockstep::server {

struct CommonFields {
  std::optional<std::string> model, request_id;
  SamplingFields sampling;
  AnswerOptions options;
  VersionFields version;
};

// ApiError 400.
CommonFields read_common(const Fields& fields, const SamplingRules& rules, bool tokens_as_ids);

}  // namespace lockstep::server
