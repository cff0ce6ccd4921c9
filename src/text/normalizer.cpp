#include "text/normalizer.h"

#include "core/utf8.h"
#include "text/component.h"
#include "text/unicode.h"

namespace lockstep::text {

namespace {

Span without_space(std::string_view text, bool left, bool right) {
  Span kept = {0, text.size()};
  size_t size = 0;
  while (left && kept.begin < kept.end && unicode::is_white_space(code_at(text.data(), kept.begin, size)))
    kept.begin += size;
  while (right && kept.begin < kept.end) {
    size_t last = kept.end - 1;
    while (!begins_character(text[last])) --last;
    if (!unicode::is_white_space(code_at(text.data(), last, size))) break;
    kept.end = last;
  }
  return kept;
}

std::vector<AlignedText::Char> in_small_letters(std::string_view text) {
  std::vector<AlignedText::Char> chars;
  chars.reserve(text.size());
  for (size_t place = 0, size = 0; place < text.size(); place += size) {
    const uint32_t code = code_at(text.data(), place, size);
    const auto small = unicode::mapped(unicode::kLowercase, unicode::kLowercaseText, code);
    if (!small) {
      chars.push_back({code, 0});
      continue;
    }
    for (size_t i = 0; i < small->size(); ++i) chars.push_back({(*small)[i], i == 0 ? 0 : 1});
  }
  return chars;
}

}  // namespace

void replace_matches(const TextView& from, std::span<const Span> matches, std::string_view text, AlignedText& to) {
  to.clear(from.tracked);
  size_t done = 0;
  for (const Span& match : matches) {
    to.append(from, {done, match.begin});
    to.append(text, byte_origin(from, match.end - 1));
    done = match.end;
  }
  to.append(from, {done, from.text.size()});
}

Normalizer::Normalizer(const Json& json, const std::string& where) {
  for_each_component(json, where + ": normalizer", "normalizers",
                     [&](const Json& step, const std::string& place) { steps_.push_back(read_step(step, place)); });
}

Normalizer::Step Normalizer::read_step(const Json& json, const std::string& where) {
  const JsonObject step(json, where);
  const std::string type = step.string("type");
  if (type == "NFC") return NormalForm::nfc;
  if (type == "NFD") return NormalForm::nfd;
  if (type == "NFKC") return NormalForm::nfkc;
  if (type == "NFKD") return NormalForm::nfkd;
  if (type == "Prepend") return Prepend{step.string("prepend")};
  if (type == "Replace")
    return Replace{TextPattern(step.value("pattern"), where + ": Replace: pattern"), step.string("content")};
  if (type == "Strip") return Strip{step.boolean("strip_left", true), step.boolean("strip_right", true)};
  if (type == "Lowercase") return Lowercase{};
  unsupported_component(where, type, "NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Lowercase or a Sequence of them");
}

bool Normalizer::may_change(std::string_view text) const {
  for (const Step& step : steps_) {
    const auto* form = std::get_if<NormalForm>(&step);
    if (form == nullptr || !surely_normal(*form, text)) return true;
  }
  return false;
}

void Normalizer::apply_step(const Step& step, const TextView& from, AlignedText& to) {
  const Span all = {0, from.text.size()};
  if (const auto* form = std::get_if<NormalForm>(&step)) {
    to.assign(from, normalized(*form, from.text));
  } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
    to.clear(from.tracked);
    if (!from.text.empty()) to.append(prepend->text, byte_origin(from, 0));
    to.append(from, all);
  } else if (const auto* replace = std::get_if<Replace>(&step)) {
    std::vector<Span> matches;
    SearchBudget budget(from.text.size());
    replace->pattern.find(from.text, matches, budget);
    replace_matches(from, matches, replace->text, to);
  } else if (const auto* strip = std::get_if<Strip>(&step)) {
    to.clear(from.tracked);
    to.append(from, without_space(from.text, strip->left, strip->right));
  } else {
    to.assign(from, in_small_letters(from.text));
  }
}

void Normalizer::apply(const TextView& from, AlignedText& to) const {
  AlignedText last;
  TextView now = from;
  for (const Step& step : steps_) {
    apply_step(step, now, to);
    std::swap(to, last);
    now = last.view();
  }
  if (steps_.empty()) {
    to.clear(from.tracked);
    to.append(from, {0, from.text.size()});
  } else {
    std::swap(to, last);
  }
}

std::string Normalizer::apply(std::string_view text) const {
  AlignedText out;
  apply({.text = text}, out);
  return out.text();
}

}  // namespace lockstep::text
