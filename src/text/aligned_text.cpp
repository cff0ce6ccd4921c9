#include "text/aligned_text.h"

#include "core/utf8.h"

namespace lockstep::text {

namespace {

size_t character_begin(std::string_view text, size_t place) {
  while (place > 0 && !begins_character(text[place])) --place;
  return place;
}

size_t character_end(std::string_view text, size_t place) {
  while (place < text.size() && !begins_character(text[place])) ++place;
  return place;
}

size_t character_size(std::string_view text, size_t place) {
  return character_end(text, place + 1) - place;
}

}  // namespace

Span TextView::origin(Span range) const {
  if (origins != nullptr) return {origins[range.begin].begin, origins[range.end - 1].end};
  return {offset + character_begin(text, range.begin), offset + character_end(text, range.end)};
}

Span byte_origin(const TextView& view, size_t place) {
  return view.tracked ? view.origin({place, place + 1}) : Span{};
}

void AlignedText::clear(bool tracked) {
  text_.clear();
  origins_.clear();
  tracked_ = tracked;
}

void AlignedText::append(const TextView& from, Span range) {
  text_ += from.text.substr(range.begin, range.end - range.begin);
  if (!tracked_) return;
  for (size_t place = range.begin; place < range.end; ++place)
    origins_.push_back(from.origins != nullptr ? from.origins[place] : from.origin({place, place + 1}));
}

void AlignedText::append(std::string_view bytes, Span origin) {
  text_ += bytes;
  if (tracked_) origins_.insert(origins_.end(), bytes.size(), origin);
}

void AlignedText::assign(const TextView& from, std::span<const Char> chars) {
  clear(from.tracked);
  text_.reserve(from.text.size());
  size_t place = 0;  // in the old text
  for (const Char& c : chars) {
    const size_t before = text_.size();
    append_utf8(text_, c.code);
    if (!tracked_) continue;
    const Span origin = c.change > 0 ? (place == 0 ? Span{} : byte_origin(from, place - 1)) : byte_origin(from, place);
    origins_.insert(origins_.end(), text_.size() - before, origin);
    for (int32_t step = c.change; step <= 0 && place < from.text.size(); ++step)
      place += character_size(from.text, place);
  }
}

}  // namespace lockstep::text
