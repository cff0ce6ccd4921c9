#include "server/protocol/chat_input.h"

#include <fmt/format.h>

#include "server/protocol/api_error.h"
#include "server/protocol/common_fields.h"

namespace lockstep::server {

namespace {

// "messages.2.content": what a field of one message is called in errors.
std::string name_in(size_t message, std::string_view field) {
  return fmt::format("messages.{}.{}", message, field);
}

// Templates take text; of a list of parts, the texts line by line, as vLLM gives them to such templates.
std::string part_text(const OrderedJson& part, const std::string& name) {
  if (part.is_string()) return part.get<std::string>();
  if (!part.is_object())
    throw ApiError(400, fmt::format("`{}` must hold strings or objects.", name), name, "Bad Request");
  const Fields fields(part, name + ".");
  const std::string type = fields.string("type").value_or("text");
  for (const char* key : {"text", "refusal", "thinking"})
    if (type == key || (type == "input_text" && std::string_view(key) == "text"))
      return fields.string(key).value_or("");
  throw bad_request(fmt::format("`{}` holds a part of type \"{}\"; this model takes text only.", name, type), name);
}

OrderedJson content_text(const OrderedJson& content, const std::string& name) {
  if (content.is_null()) return "";
  if (content.is_string()) return content;
  if (!content.is_array())
    throw ApiError(400, fmt::format("`{}` must be a string or a list of parts.", name), name, "Bad Request");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) text += (i > 0 ? "\n" : "") + part_text(content[i], name);
  return text;
}

// Clients send arguments as the text of a JSON object; templates write objects. `values_left` is of all messages: each
// text is one value of the body.
void parse_arguments(OrderedJson& message, const std::string& name, size_t& values_left) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return;
  if (!calls->is_array()) throw ApiError(400, fmt::format("`{}` must be a list.", name), name, "Bad Request");
  for (OrderedJson& call : *calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object())
      throw ApiError(400, fmt::format("`{}` must hold calls of functions.", name), name, "Bad Request");
    OrderedJson& arguments = call["function"]["arguments"];
    if (!arguments.is_string()) continue;
    const std::string text = arguments.get<std::string>();
    arguments = OrderedJson::object();
    if (text.empty()) continue;
    try {
      arguments = parse_ordered_json(text, name, nullptr, &values_left);
    } catch (const FormatError& error) {
      throw bad_request(one_line(error.fault()), name);
    }
  }
}

OrderedJson read_message(const OrderedJson& given, size_t i, size_t& values_left) {
  if (!given.is_object())
    throw ApiError(400, fmt::format("`messages.{}` must be an object.", i), fmt::format("messages.{}", i),
                   "Bad Request");
  OrderedJson message = given;
  const Fields fields(given, fmt::format("messages.{}.", i));
  check_repeated(fields.required_string("role"), name_in(i, "role"));
  if (const auto content = message.find("content"); content != message.end())
    *content = content_text(*content, name_in(i, "content"));
  else
    message["content"] = "";
  parse_arguments(message, name_in(i, "tool_calls"), values_left);
  return message;
}

void check_tool_choice(const Fields& fields, bool tools) {
  const OrderedJson* choice = fields.find("tool_choice");
  if (choice == nullptr || *choice == "none") return;
  if (!tools) throw bad_request("When using `tool_choice`, `tools` must be set.", "tool_choice");
  if (*choice != "auto")
    throw bad_request("`tool_choice` may be \"none\" or \"auto\"; this server does not force calls.", "tool_choice");
}

OrderedJson read_kwargs(const Fields& fields, const OrderedJson& usual) {
  OrderedJson kwargs = usual.is_object() ? usual : OrderedJson::object();
  for (const char* name : {"documents", "reasoning_effort"})
    if (const OrderedJson* value = fields.find(name)) kwargs[name] = *value;
  if (const auto more = fields.object("chat_template_kwargs")) {
    for (const char* name : {"messages", "tools", "add_generation_prompt"})
      if (more->has(name))
        throw bad_request(fmt::format("`chat_template_kwargs` may not hold \"{}\".", name), "chat_template_kwargs");
    kwargs.update(more->json());
  }
  return kwargs;
}

}  // namespace

ChatFields read_chat(const Fields& fields, const OrderedJson& kwargs) {
  const OrderedJson* messages = fields.find("messages");
  if (messages == nullptr) throw ApiError(400, "`messages` is required.", "messages", "Bad Request");
  if (!messages->is_array()) fields.wrong("messages", *messages, "a list of messages");
  if (messages->empty()) throw bad_request("`messages` must hold at least one message.", "messages");
  ChatFields chat{.input = {.messages = OrderedJson::array(), .kwargs = read_kwargs(fields, kwargs)},
                  .chat_template = fields.string("chat_template").value_or(""),
                  .add_special_tokens = fields.flag("add_special_tokens")};
  size_t values_left = kMaxJsonValues;
  for (size_t i = 0; i < messages->size(); ++i)
    chat.input.messages.push_back(read_message((*messages)[i], i, values_left));
  if (const OrderedJson* tools = fields.find("tools")) {
    if (!tools->is_array()) fields.wrong("tools", *tools, "a list of tools");
    if (tools->empty()) throw bad_request("`tools` must not be an empty array.", "tools");
    chat.input.tools = *tools;
  }
  check_tool_choice(fields, !chat.input.tools.is_null());
  chat.input.continue_final_message = fields.flag("continue_final_message");
  chat.input.add_generation_prompt = fields.flag("add_generation_prompt", !chat.input.continue_final_message);
  if (chat.input.continue_final_message && chat.input.add_generation_prompt)
    throw bad_request("Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
                      "continue_final_message");
  const OrderedJson& last = chat.input.messages.back();
  chat.role = chat.input.add_generation_prompt ? "assistant" : last["role"].get<std::string>();
  if (last["role"] == chat.role && last["content"].is_string()) chat.last_content = last["content"].get<std::string>();
  return chat;
}

}  // namespace lockstep::server
