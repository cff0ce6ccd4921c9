#include "commands/conversation.h"

#include <algorithm>
#include <utility>

#include "recipes/chat.h"

namespace lockstep::commands {

namespace {

OrderedJson message(const char* role, const std::string& text) {
  return {{"role", role}, {"content", text}};
}

}  // namespace

Conversation::Conversation(std::optional<text::ChatTemplate> chat_template, recipes::ChatOptions options)
    : template_(std::move(chat_template)), options_(std::move(options)) {}

void Conversation::system(const std::string& text) {
  system_ = text;
}
void Conversation::user(const std::string& text) {
  turns_.push_back(message("user", text));
}
void Conversation::assistant(const std::string& text) {
  turns_.push_back(message("assistant", text));
}

bool Conversation::undo() {
  if (turns_.empty()) return false;
  while (turns_.back()["role"] != "user") turns_.erase(turns_.size() - 1);
  turns_.erase(turns_.size() - 1);
  return true;
}

void Conversation::reset() {
  turns_ = OrderedJson::array();
}

int64_t Conversation::turns() const {
  return std::ranges::count(turns_, "user", [](const OrderedJson& turn) { return turn["role"].get<std::string>(); });
}

OrderedJson Conversation::messages() const {
  OrderedJson all = OrderedJson::array();
  if (!system_.empty()) all.push_back(message("system", system_));
  for (const OrderedJson& turn : turns_) all.push_back(turn);
  return all;
}

std::string Conversation::prompt() const {
  if (template_) {
    text::ChatInput input = recipes::conversation_of(OrderedJson::object(), messages(), options_, "the conversation");
    input.add_generation_prompt = true;
    return recipes::render_chat(*template_, input, "the conversation").text;
  }
  std::string text;
  for (const OrderedJson& said : messages()) text += said["content"].get<std::string>();
  return text;
}

}  // namespace lockstep::commands
