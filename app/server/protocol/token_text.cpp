#include "server/protocol/token_text.h"

#include <fmt/format.h>

#include "server/protocol/json_text.h"

namespace lockstep::server {

std::string token_text(const text::Tokenizer& tokenizer, int32_t id, bool as_id) {
  return as_id ? fmt::format("token_id:{}", id) : valid_utf8(tokenizer.token_bytes(id));
}

}  // namespace lockstep::server
