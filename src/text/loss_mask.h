// Which tokens of a rendered conversation are targets.
//
// A token belongs to a stretch of the text as in transformers' apply_chat_template(return_assistant_tokens_mask=True):
// from the token that holds the first character to the one in which the last character begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"
#include "text/chat_template.h"
#include "text/span.h"
#include "text/tokenizer.h"

namespace lockstep::text {

struct MaskedTokens {
  std::string text;  // as rendered
  std::vector<int32_t> ids;
  std::vector<Span> spans;     // of each token, in text
  std::vector<float> weights;  // of each token as a target; 0: none
};

// Every token counts 1. DataError for a message whose weight (below) is another.
MaskedTokens render_tokens(const ChatTemplate& chat_template, const Tokenizer& tokenizer, ChatInput input);

// The assistant's turns count what their messages say: "weight" (as in OpenAI's files) times "step_loss_mask" (as in
// slime's), 1 where a message says nothing; the template sees neither key. The turns are the template's
// {% generation %} blocks. If it has none, turn i is what the rendering of messages 0..i has beyond that of messages
// 0..i-1 with a generation prompt, without the white space behind its end token; its tokens are decoded again and
// compared with it.
// The conversation is whole: no generation prompt, nothing to be continued.
// DataError naming the turn: a weight that is none, or is that of another role; a rendering of a prefix that is no
// prefix of the whole; tokens that do not say what the turn says; weights for another number of turns than there are
// blocks.
MaskedTokens assistant_tokens(const ChatTemplate& chat_template, const Tokenizer& tokenizer, ChatInput input);

// Tokens that two lists have in common at their beginning: where a completion starts, for TRL.
size_t common_prefix_length(const std::vector<int32_t>& a, const std::vector<int32_t>& b);

}  // namespace lockstep::text
