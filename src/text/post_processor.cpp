#include "text/post_processor.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/utf8.h"
#include "text/component.h"
#include "text/unicode.h"

namespace lockstep::text {

namespace {

// White space, or the character that spells a space.
bool is_space(uint32_t code) {
  constexpr uint32_t kSpelledSpace = 0x120;
  return code == kSpelledSpace || unicode::is_white_space(code);
}

size_t last_character(std::string_view text) {
  size_t place = text.size() - 1;
  while (place > 0 && !begins_character(text[place])) --place;
  return place;
}

size_t leading_spaces(std::string_view token) {
  size_t count = 0;
  for (size_t place = 0, size = 0; place < token.size(); place += size, ++count)
    if (!is_space(code_at(token.data(), place, size))) break;
  return count;
}

size_t trailing_spaces(std::string_view token) {
  size_t count = 0, size = 0;
  for (; !token.empty(); ++count) {
    const size_t place = last_character(token);
    if (!is_space(code_at(token.data(), place, size))) break;
    token = token.substr(0, place);
  }
  return count;
}

void trim(std::string_view text, std::string_view token, bool prefix_space, bool first, Span& span) {
  size_t leading = leading_spaces(token);
  const size_t trailing = trailing_spaces(token);
  // One space in front may have been put there, and is not one of the text.
  if (leading == 1 && prefix_space && (first || span.begin == 0)) --leading;
  size_t size = 0;
  for (; leading > 0 && span.begin < span.end; --leading) {
    code_at(text.data(), span.begin, size);
    span.begin += size;
  }
  std::string_view before = text.substr(0, span.end);
  for (size_t i = 0; i < trailing; ++i) {
    if (before.empty()) return;
    before = before.substr(0, last_character(before));
  }
  span.end = std::max(before.size(), span.begin);
}

std::vector<int32_t> ids_of(const Json& tokens, const std::string& name, const std::string& where) {
  const JsonObject token(JsonObject(tokens, where).value(name), where + ": " + name);
  const Json& list = token.value("ids");
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<int32_t>::max())
      throw FormatError({.what = "not a token id", .where = where + ": " + name, .got = shown_json(id)});
    ids.push_back(id.get<int32_t>());
  }
  if (!list.is_array() || ids.empty())
    throw FormatError({.what = "a value has the wrong type",
                       .where = where + ": " + name + ": ids",
                       .got = shown_json(list),
                       .wanted = "a list of token ids"});
  return ids;
}

}  // namespace

PostProcessor::PostProcessor(const Json& json, const std::string& where) {
  for_each_component(json, where + ": post_processor", "processors",
                     [&](const Json& step_json, const std::string& place) {
                       const JsonObject step(step_json, place);
                       const std::string type = step.string("type");
                       if (type == "TemplateProcessing")
                         steps_.push_back(read_template(step_json, place + ": TemplateProcessing"));
                       else if (type != "ByteLevel")
                         unsupported_component(place, type, "ByteLevel, TemplateProcessing or a Sequence of them");
                       else if (step.boolean("trim_offsets", true))
                         steps_.push_back(Trim{step.boolean("add_prefix_space", true)});
                     });
}

PostProcessor::Template PostProcessor::read_template(const Json& json, const std::string& where) {
  const JsonObject step(json, where);
  const Json& single = step.value("single");
  if (!single.is_array())
    throw FormatError({.what = "a value has the wrong type",
                       .where = where + ": single",
                       .got = shown_json(single),
                       .wanted = "a list"});
  Template out;
  for (const Json& part : single) {
    const JsonObject object(part, where + ": single");
    if (object.has("Sequence"))
      out.parts.emplace_back();
    else
      out.parts.push_back(
          ids_of(step.value("special_tokens"), object.object("SpecialToken").string("id"), where + ": special_tokens"));
  }
  return out;
}

void PostProcessor::add_special(std::vector<int32_t>& ids) const {
  for (const Step& step : steps_)
    if (std::holds_alternative<Template>(step)) {
      const std::vector<int32_t> text = std::move(ids);
      ids.clear();
      for (const auto& part : std::get<Template>(step).parts)
        ids.insert(ids.end(), part.empty() ? text.begin() : part.begin(), part.empty() ? text.end() : part.end());
    }
}

void PostProcessor::process(std::string_view text, const std::function<std::string_view(size_t)>& spelling,
                            bool add_special, std::vector<int32_t>& ids, std::vector<Span>& spans) const {
  for (const Step& step : steps_) {
    if (const auto* trimming = std::get_if<Trim>(&step)) {
      for (size_t i = 0; i < ids.size(); ++i) trim(text, spelling(i), trimming->prefix_space, i == 0, spans[i]);
    } else if (add_special) {
      const std::vector<int32_t> text_ids = std::move(ids);
      const std::vector<Span> text_spans = std::move(spans);
      ids.clear();
      spans.clear();
      for (const auto& part : std::get<Template>(step).parts) {
        ids.insert(ids.end(), part.empty() ? text_ids.begin() : part.begin(),
                   part.empty() ? text_ids.end() : part.end());
        if (part.empty())
          spans.insert(spans.end(), text_spans.begin(), text_spans.end());
        else
          spans.resize(spans.size() + part.size());
      }
    }
  }
}

}  // namespace lockstep::text
