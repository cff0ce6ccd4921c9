// Rows of data sets to conversations, and conversations to prompts.
#pragma once

#include <optional>
#include <string>

#include "recipes/options.h"
#include "text/chat_template.h"

namespace lockstep::recipes {

// --chat-template FILE (with the special tokens of the model directory), else the directory's own; nullopt: it has
// none. An empty directory stands for no model.
std::optional<text::ChatTemplate> load_chat_template(const std::string& directory, const ChatOptions& options);

// These messages with what the row has beside them: tools (a list of JSON schemas, or its text; chat.tool_key) and
// "chat_template_kwargs", which go before the command's. DataError naming `where` (empty: the key alone).
text::ChatInput conversation_of(const OrderedJson& row, OrderedJson messages, const ChatOptions& options,
                                const std::string& where);

// The conversation under `key`: a list of messages, or a string, which becomes one user message. DataError naming
// `where`.
text::ChatInput chat_input(const OrderedJson& row, const std::string& key, const ChatOptions& options,
                           const std::string& where);

// template.render; a DataError names `where` too.
text::Rendered render_chat(const text::ChatTemplate& chat_template, const text::ChatInput& input,
                           const std::string& where);

// What a model is asked. Lists of messages are rendered with a generation prompt; strings are taken as they are, or
// with --apply-chat-template as one user message.
class PromptRenderer {
 public:
  PromptRenderer() = default;  // no template: strings only
  PromptRenderer(const std::string& directory, const ChatOptions& options)
      : options_(options), template_(load_chat_template(directory, options)) {}

  // DataError: no such key, another type, messages and no template, what the template refuses.
  std::string render(const OrderedJson& row, const std::string& key, const std::string& where) const;

 private:
  ChatOptions options_;
  std::optional<text::ChatTemplate> template_;
};

}  // namespace lockstep::recipes
