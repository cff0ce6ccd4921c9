// Chat templates: conversations to the text a model was trained on, byte for byte as transformers'
// tokenizer.apply_chat_template(..., tokenize=False).
//
//   memory    immutable after loading; render may be called by many threads at once
//   language  text/jinja/template.h
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/render_limits.h"
#include "text/span.h"

namespace lockstep::text {

struct ChatInput {
  OrderedJson messages;  // a list of {"role", "content", ...}
  OrderedJson tools;     // a list of JSON schemas; null: none
  OrderedJson kwargs;    // further variables (enable_thinking, documents ...): an object or null
  bool add_generation_prompt = false;
  bool continue_final_message = false;  // leave the last message open, so that a model continues it
  std::optional<std::tm> now;           // for templates that ask for the date; default: the clock, local time
};

struct Rendered {
  std::string text;
  std::vector<Span> generation_spans;  // bytes of text inside {% generation %}
};

class ChatTemplate {
 public:
  // `where` names the template in errors; `special_tokens` are variables such as {"bos_token": "<s>"} (or null).
  // FormatError with the line number: not a template, or not supported.
  static ChatTemplate parse(std::string_view source, const std::string& where, OrderedJson special_tokens = {});

  // The template of a model directory, as transformers 5 finds it: chat_template.jinja and
  // additional_chat_templates/*.jinja, else "chat_template" of tokenizer_config.json (a string, or a list of {name,
  // template}); nullopt when there is none. A broken template is an error when it is rendered, not here.
  static std::optional<ChatTemplate> load(const std::string& directory);

  // --chat-template FILE, with the special tokens of a model directory (empty: none).
  static ChatTemplate load_file(const std::string& file, const std::string& directory);

  // bos_token, eos_token ... of tokenizer_config.json (and the older special_tokens_map.json): name -> text.
  static OrderedJson special_tokens(const std::string& directory);

  // Of several templates `tool_use` is taken when there are tools, else `default`.
  // DataError: no message, raise_exception's message, whatever Python would raise; FormatError: not supported, or
  // beyond a limit.
  Rendered render(const ChatInput& input, const RenderLimits& limits = {}) const;

  // Whether the template that render uses marks the assistant's turns by {% generation %}.
  bool marks_generation(bool with_tools = false) const;
  const std::string& source(bool with_tools = false) const;

 private:
  struct Named;
  const Named& chosen(bool with_tools) const;
  void add(const std::string& name, std::string source, const std::string& where);

  std::vector<std::shared_ptr<const Named>> templates_;
  OrderedJson special_tokens_;
};

}  // namespace lockstep::text
