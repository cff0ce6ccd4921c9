#include "text/chat_template.h"

#include <algorithm>
#include <exception>
#include <filesystem>

#include "core/error.h"
#include "core/fs.h"
#include "text/jinja/characters.h"
#include "text/jinja/template.h"
#include "text/text_search.h"

namespace lockstep::text {

namespace {

constexpr std::string_view kSpaces = " \t\n\v\f\r";
constexpr std::string_view kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};

// A token is written as its text or as {"content": text, ...}; null: there is none.
void take_special_tokens(OrderedJson& tokens, const Json& from, const std::string& where) {
  for (const std::string_view name : kSpecialTokens) {
    const auto found = from.find(std::string(name));
    if (found == from.end()) continue;
    if (found->is_null()) {
      tokens.erase(std::string(name));
      continue;
    }
    const bool wrapped = found->is_object() && found->contains("content");
    const Json& text = wrapped ? (*found)["content"] : *found;
    if (!text.is_string())
      throw FormatError({.what = "a special token is no text",
                         .where = where + ": " + std::string(name),
                         .got = found->dump(),
                         .wanted = "a string, or an object with \"content\""});
    tokens[std::string(name)] = text.get<std::string>();
  }
}

Json read_object(const fs::Path& path) {
  if (!fs::exists(path)) return Json::object();
  Json json = read_json(path.string());
  if (!json.is_object()) throw FormatError({.what = "a JSON object is wanted", .where = path.string()});
  return json;
}

std::string read_template(const fs::Path& path) {
  constexpr size_t kMaxBytes = size_t{1} << 20;  // the longest of known models has 20 KB
  return fs::read_file(path, {}, kMaxBytes);
}

}  // namespace

struct ChatTemplate::Named {
  std::string name, source;
  std::optional<jinja::Template> parsed;
  std::exception_ptr error;  // why it could not be parsed
};

void ChatTemplate::add(const std::string& name, std::string source, const std::string& where) {
  auto made = std::make_shared<Named>(Named{.name = name, .source = std::move(source), .parsed = {}, .error = {}});
  try {
    made->parsed = jinja::Template::parse(made->source, where);
  } catch (const FormatError&) {
    made->error = std::current_exception();
  }
  templates_.push_back(std::move(made));
}

ChatTemplate ChatTemplate::parse(std::string_view source, const std::string& where, OrderedJson special_tokens) {
  ChatTemplate made;
  made.special_tokens_ = std::move(special_tokens);
  made.add("default", std::string(source), where);
  if (made.templates_[0]->error) std::rethrow_exception(made.templates_[0]->error);
  return made;
}

OrderedJson ChatTemplate::special_tokens(const std::string& directory) {
  const fs::Path config = fs::Path(directory) / "tokenizer_config.json";
  const fs::Path map = fs::Path(directory) / "special_tokens_map.json";
  OrderedJson tokens = OrderedJson::object();
  const Json json = read_object(config);
  take_special_tokens(tokens, json, config.string());
  // As transformers: a configuration that lists its added tokens says all there is to know.
  if (!json.contains("added_tokens_decoder")) take_special_tokens(tokens, read_object(map), map.string());
  return tokens;
}

ChatTemplate ChatTemplate::load_file(const std::string& file, const std::string& directory) {
  return parse(read_template(file), file, directory.empty() ? OrderedJson() : special_tokens(directory));
}

std::optional<ChatTemplate> ChatTemplate::load(const std::string& directory) {
  const fs::Path root(directory), config = root / "tokenizer_config.json";
  ChatTemplate made;
  const fs::Path single = root / "chat_template.jinja", more = root / "additional_chat_templates";
  if (fs::exists(single)) made.add("default", read_template(single), single.string());
  if (fs::is_directory(more)) {
    std::vector<fs::Path> files;
    for (const auto& entry : std::filesystem::directory_iterator(more))
      if (entry.path().extension() == ".jinja") files.push_back(entry.path());
    std::ranges::sort(files);
    for (const fs::Path& file : files) made.add(file.stem().string(), read_template(file), file.string());
  }
  if (made.templates_.empty()) {
    const Json json = read_object(config);
    const auto found = json.find("chat_template");
    const std::string where = config.string() + ": chat_template";
    if (found == json.end() || found->is_null()) return std::nullopt;
    if (found->is_string()) {
      made.add("default", found->get<std::string>(), where);
    } else if (found->is_array()) {
      for (const Json& item : *found) {
        const JsonObject named(item, where);
        made.add(named.string("name"), named.string("template"), where + " " + named.string("name"));
      }
    } else {
      throw FormatError({.what = "a value has the wrong type",
                         .where = where,
                         .wanted = "a string, or a list of {\"name\", \"template\"}"});
    }
  }
  if (made.templates_.empty()) return std::nullopt;
  made.special_tokens_ = special_tokens(directory);
  return made;
}

const ChatTemplate::Named& ChatTemplate::chosen(bool with_tools) const {
  const auto find = [&](std::string_view name) -> const Named* {
    const auto found = std::ranges::find_if(templates_, [&](const auto& named) { return named->name == name; });
    return found == templates_.end() ? nullptr : found->get();
  };
  if (with_tools)
    if (const Named* tool_use = find("tool_use")) return *tool_use;
  if (const Named* usual = find("default")) return *usual;
  std::string names;
  for (const auto& named : templates_) names += (names.empty() ? "" : ", ") + named->name;
  throw FormatError({.what = "the model has several chat templates and none is the default",
                     .got = names,
                     .wanted = "one named default",
                     .attempt = "ChatOptions::template_file FILE"});
}

const std::string& ChatTemplate::source(bool with_tools) const {
  return chosen(with_tools).source;
}

bool ChatTemplate::marks_generation(bool with_tools) const {
  const std::string_view text = source(with_tools);
  constexpr std::string_view kBegin = "{%", kName = "generation", kEnd = "%}";
  for (size_t place = text.find(kBegin); place != std::string_view::npos; place = text.find(kBegin, place)) {
    place += kBegin.size();
    std::string_view rest = text.substr(place);
    const auto skip = [&](std::string_view expected) {
      const bool found = rest.starts_with(expected);
      if (found) rest.remove_prefix(expected.size());
      return found;
    };
    const auto skip_sign = [&] { return skip("-") || skip("+"); };
    const auto skip_spaces = [&] { rest.remove_prefix(std::min(rest.find_first_not_of(kSpaces), rest.size())); };
    skip_sign();
    skip_spaces();
    if (!skip(kName)) continue;
    skip_spaces();
    skip_sign();
    if (skip(kEnd)) return true;
  }
  return false;
}

namespace {

constexpr std::string_view kTag = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr std::string_view kTagWord = kTag.substr(0, kTag.size() - 1);

[[noreturn]] void cannot_continue(const std::string& reason) {
  throw DataError({.what = "the final message cannot be continued", .got = reason});
}

// Writes the tag behind the text that is to be continued, and returns that text.
std::string mark_final_message(OrderedJson& messages, const std::string& source) {
  OrderedJson& last = messages.back();
  const auto content = last.is_object() ? last.find("content") : last.end();
  if (!last.is_object() || content == last.end() || content->is_null()) cannot_continue("it has no \"content\"");
  if (source.find("content") == std::string::npos) cannot_continue("the template does not use \"content\"");
  const auto mark = [](OrderedJson& text) {
    if (!text.is_string()) cannot_continue("its content is no text");
    const std::string plain = text.get<std::string>();
    text = plain + std::string(kTag);
    return plain;
  };
  if (!content->is_array()) return mark(*content);
  for (auto block = content->rbegin(); block != content->rend(); ++block)
    if (block->is_object() && block->contains("text")) return mark((*block)["text"]);
  cannot_continue("no part of its content is a text");
}

// Both may come with one request, so the search must be linear.
bool occurs(std::string_view part, std::string_view text) {
  return part.empty() || TextSearch(part).find(text) != std::string_view::npos;
}

// Cuts the rendered text where the final message ends.
void cut_at_tag(Rendered& rendered, const std::string& message) {
  std::string& text = rendered.text;
  const size_t place = text.rfind(kTagWord);
  if (place == std::string::npos || !occurs(jinja::strip_spaces(message), text))
    cannot_continue("the template does not show it as it is");
  const bool whole = text.compare(place, kTag.size(), kTag) == 0;
  text.resize(place);
  if (!whole) text.resize(jinja::strip_spaces(text, false, true).size());
  std::erase_if(rendered.generation_spans, [&](const Span& span) { return span.begin >= text.size(); });
  for (Span& span : rendered.generation_spans) span.end = std::min(span.end, text.size());
}

void check_input(const ChatInput& input) {
  if (!input.messages.is_array() || input.messages.empty())
    throw DataError({.what = "a conversation is a list of at least one message",
                     .got = input.messages.is_array() ? "an empty list" : input.messages.type_name()});
  if (input.add_generation_prompt && input.continue_final_message)
    throw ConfigError({.what = "continuing the final message and adding a generation prompt exclude each other"});
  if (!input.tools.is_null() && !input.tools.is_array())
    throw DataError({.what = "tools are a list of JSON schemas", .got = input.tools.type_name()});
  if (!input.kwargs.is_null() && !input.kwargs.is_object())
    throw ConfigError({.what = "the variables of a chat template are a JSON object", .got = input.kwargs.type_name()});
}

}  // namespace

Rendered ChatTemplate::render(const ChatInput& input, const RenderLimits& limits) const {
  check_input(input);
  const Named& named = chosen(!input.tools.is_null());
  if (named.error) std::rethrow_exception(named.error);
  OrderedJson variables = OrderedJson::object();
  if (special_tokens_.is_object()) variables.update(special_tokens_);
  variables["documents"] = nullptr;
  if (input.kwargs.is_object()) variables.update(input.kwargs);
  for (const char* name : {"messages", "tools", "add_generation_prompt"})
    if (input.kwargs.is_object() && input.kwargs.contains(name))
      throw ConfigError({.what = "this variable of a chat template is set by the program", .got = name});
  variables["messages"] = input.messages;
  variables["tools"] = input.tools;
  variables["add_generation_prompt"] = input.add_generation_prompt;
  std::string final_message;
  if (input.continue_final_message) final_message = mark_final_message(variables["messages"], named.source);
  jinja::Rendering made = named.parsed->render(variables, {.limits = limits, .now = input.now});
  Rendered rendered{std::move(made.text), std::move(made.generation_spans)};
  if (input.continue_final_message) cut_at_tag(rendered, final_message);
  return rendered;
}

}  // namespace lockstep::text
