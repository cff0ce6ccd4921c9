// The conversation of a request, as the chat template takes it.
#pragma once

#include <string>

#include "server/protocol/fields.h"
#include "text/chat_template.h"

namespace lockstep::server {

struct ChatFields {
  text::ChatInput input;      // messages as templates expect them: text parts joined, arguments of calls parsed
  std::string role;           // of the answer
  std::string last_content;   // of the last message, if the answer goes on with it
  std::string chat_template;  // a template of the request's own; empty: none
  bool add_special_tokens = false;
};

// messages, tools, tool_choice, documents, chat_template_kwargs (which go before `kwargs`), reasoning_effort,
// add_generation_prompt, continue_final_message, chat_template, add_special_tokens. ApiError 400 naming the field: no
// message, no role, content other than text, a tool_choice that would force a call.
ChatFields read_chat(const Fields& fields, const OrderedJson& kwargs);

}  // namespace lockstep::server
