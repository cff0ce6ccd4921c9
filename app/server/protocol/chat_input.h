// The conversation of a request, as input of the chat template.
#pragma once

#include <string>

#include "server/protocol/fields.h"
#include "text/chat_template.h"

namespace lockstep::server {

struct ChatFields {
  text::ChatInput input;      // messages as templates expect them: text parts joined, arguments of tool calls parsed
  std::string role;           // role of the answer
  std::string last_content;   // content of the last message, if the answer continues it
  std::string chat_template;  // the request's own template; empty: none
  bool add_special_tokens = false;
};

// messages, tools, tool_choice, documents, chat_template_kwargs (which go before `kwargs`), reasoning_effort,
// add_generation_prompt, continue_final_message, chat_template, add_special_tokens. ApiError 400 naming the field: no
// message, no role, content other than text, a tool_choice that would force a call.
ChatFields read_chat(const Fields& fields, const OrderedJson& kwargs);

}  // namespace lockstep::server
