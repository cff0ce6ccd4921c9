#include "recipes/chat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "core/error.h"

namespace lockstep::recipes {

namespace {

const OrderedJson& field(const OrderedJson& row, const std::string& key, const std::string& where) {
  if (const auto found = row.find(key); found != row.end()) return *found;
  std::vector<std::string> keys;
  for (const auto& item : row.items()) keys.push_back(item.key());
  throw DataError({.what = "a row lacks a key",
                   .where = where,
                   .got = fmt::format("keys {}", fmt::join(keys, ", ")),
                   .wanted = key});
}

[[noreturn]] void wrong_type(const OrderedJson& value, const std::string& key, const std::string& where,
                             const char* wanted) {
  throw DataError({.what = "a field has the wrong type",
                   .where = where.empty() ? key : where + ": " + key,
                   .got = value.dump(-1, ' ', true, OrderedJson::error_handler_t::replace).substr(0, 100),
                   .wanted = wanted});
}

// Tools as a list; data sets also hold them as the text of one.
OrderedJson tools_of(const OrderedJson& row, const std::string& key, const std::string& where) {
  const auto found = row.find(key);
  if (found == row.end() || found->is_null()) return {};
  OrderedJson tools = *found;
  if (tools.is_string()) {
    tools = OrderedJson::parse(tools.get<std::string>(), nullptr, false);
    if (tools.is_null()) return {};
  }
  if (!tools.is_array()) wrong_type(*found, key, where, "a list of JSON schemas");
  return tools;
}

}  // namespace

std::optional<text::ChatTemplate> load_chat_template(const std::string& directory, const ChatOptions& options) {
  if (!options.template_file.empty()) return text::ChatTemplate::load_file(options.template_file, directory);
  return directory.empty() ? std::nullopt : text::ChatTemplate::load(directory);
}

text::ChatInput conversation_of(const OrderedJson& row, OrderedJson messages, const ChatOptions& options,
                                const std::string& where) {
  text::ChatInput input{
      .messages = std::move(messages), .tools = tools_of(row, options.tool_key, where), .kwargs = options.kwargs};
  if (const auto more = row.find("chat_template_kwargs"); more != row.end() && !more->is_null()) {
    if (!more->is_object()) wrong_type(*more, "chat_template_kwargs", where, "an object");
    for (const char* name : {"messages", "tools", "add_generation_prompt"})
      if (more->contains(name)) wrong_type(*more, "chat_template_kwargs", where, "no variable of the program's own");
    if (input.kwargs.is_null()) input.kwargs = OrderedJson::object();
    input.kwargs.update(*more);
  }
  return input;
}

text::ChatInput chat_input(const OrderedJson& row, const std::string& key, const ChatOptions& options,
                           const std::string& where) {
  const OrderedJson& messages = field(row, key, where);
  if (messages.is_string())
    return conversation_of(row, OrderedJson::array({{{"role", "user"}, {"content", messages}}}), options, where);
  if (!messages.is_array()) wrong_type(messages, key, where, "a list of messages, or a string");
  return conversation_of(row, messages, options, where);
}

text::Rendered render_chat(const text::ChatTemplate& chat_template, const text::ChatInput& input,
                           const std::string& where) {
  try {
    return chat_template.render(input);
  } catch (const DataError& error) {
    Fault fault = error.fault();
    fault.where = where + (fault.where.empty() ? "" : " (" + fault.where + ")");
    throw DataError(std::move(fault));
  }
}

std::string PromptRenderer::render(const OrderedJson& row, const std::string& key, const std::string& where) const {
  const OrderedJson& value = field(row, key, where);
  if (value.is_string() && !options_.apply) return value.get<std::string>();
  if (!value.is_string() && !value.is_array()) wrong_type(value, key, where, "a string, or a list of messages");
  if (!template_)
    throw DataError({.what = "the model has no chat template",
                     .where = where,
                     .got = "\"" + key + "\": " + (value.is_array() ? "a list of messages" : "a string to be rendered"),
                     .attempt = "ChatOptions::template_file FILE"});
  text::ChatInput input = chat_input(row, key, options_, where);
  input.add_generation_prompt = true;
  return render_chat(*template_, input, where).text;
}

}  // namespace lockstep::recipes
