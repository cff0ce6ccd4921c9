#include "text/text_pattern.h"

#include "core/error.h"
#include "text/component.h"

namespace lockstep::text {

namespace {

void find_string(std::string_view text, std::string_view wanted, std::vector<Span>& matches) {
  for (size_t place = text.find(wanted); place != std::string_view::npos; place = text.find(wanted, place)) {
    matches.push_back({place, place + wanted.size()});
    place += wanted.size();
  }
}

}  // namespace

TextPattern TextPattern::regex(std::string_view expression) {
  if (const auto scanner = SplitScanner::recognise(expression)) return TextPattern(Form(*scanner));
  return TextPattern(Form(SplitRegex(expression)));
}

TextPattern::TextPattern(const Json& json, const std::string& where) {
  if (!json.is_object() || json.size() != 1 || !json.begin().value().is_string() ||
      json.begin().value().get_ref<const std::string&>().empty())
    unsupported_component(where, shown_json(json), "{\"String\": ...} or {\"Regex\": ...}, not empty");
  const std::string& text = json.begin().value().get_ref<const std::string&>();
  if (json.contains("String"))
    form_ = text;
  else if (json.contains("Regex"))
    *this = regex(text);
  else
    unsupported_component(where, json.begin().key(), "String or Regex");
}

void TextPattern::find(std::string_view text, std::vector<Span>& matches, SearchBudget& budget) const {
  if (const auto* wanted = std::get_if<std::string>(&form_)) return find_string(text, *wanted, matches);
  if (const auto* scanner = std::get_if<SplitScanner>(&form_)) return scanner->find(text, matches);
  std::get<SplitRegex>(form_).find(text, matches, budget);
}

std::string_view TextPattern::literal() const {
  const auto* wanted = std::get_if<std::string>(&form_);
  return wanted == nullptr ? std::string_view() : *wanted;
}

}  // namespace lockstep::text
