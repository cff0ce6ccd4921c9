// One token as text, beside the text it is part of.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace lockstep::server {

// The text a token stands for in the middle of a text; a part of a character becomes U+FFFD. With `as_id`:
// "token_id:123".
std::string token_text(const text::Tokenizer& tokenizer, int32_t id, bool as_id = false);

}  // namespace lockstep::server
