// How large an answer may become: what one request may ask for, and what of its answer is known before it begins. The
// numbers are those of docs/server.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/protocol/common_fields.h"
#include "server/routes/answer.h"

namespace lockstep::server {

// ApiError 400 naming the field: more log-probs of prompts, or more of the prompts themselves, than the choices of one
// answer may repeat. In a stream, where an update with all of it is made on the server's thread, that is less.
void check_repeated_prompts(const std::vector<PromptInput>& prompts, const CommonFields& common);

// ApiError 400 naming the field: more log-probs of tokens than an answer may have, or a stream whose every event
// repeats more than such an event may hold.
void check_tokens(const CommonFields& common, int64_t samples, int64_t max_tokens);

// Bytes that the answer will hold whatever is generated: its choices, and what they repeat of the prompts.
size_t known_bytes(const std::vector<PromptInput>& prompts, const CommonFields& common);

}  // namespace lockstep::server
