// str.split, rsplit and splitlines.
#include <algorithm>

#include "core/utf8.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace lockstep::text::jinja {

std::vector<std::string> split_lines(Runtime& runtime, std::string_view text, bool keep_ends) {
  runtime.pass_slowly(text.size());
  std::vector<std::string> lines;
  size_t begin = 0;
  const auto put = [&](size_t end) {
    runtime.charge(sizeof(std::string) + end - begin);
    lines.emplace_back(text.substr(begin, end - begin));
  };
  for (size_t place = 0; place < text.size();) {
    const Utf8Char next = read_utf8(text.substr(place));
    if (!is_line_break(next.code)) {
      place += next.size;
      continue;
    }
    size_t end = place + next.size;
    if (next.code == '\r' && end < text.size() && text[end] == '\n') ++end;
    put(keep_ends ? end : place);
    begin = place = end;
  }
  if (begin < text.size()) put(text.size());
  return lines;
}

namespace {

// Bytes of the word at the left or right end of the text.
size_t word_size(std::string_view text, bool from_right) {
  size_t size = 0;
  while (size < text.size()) {
    const Utf8Char next =
        from_right ? last_character(text.substr(0, text.size() - size)) : read_utf8(text.substr(size));
    if (is_space(next.code)) break;
    size += next.size;
  }
  return size;
}

}  // namespace

// Runs of spaces cut; `most` cuts at most, the rest stays whole.
std::vector<std::string_view> split_spaces(Runtime& runtime, std::string_view text, Int most, bool from_right) {
  std::vector<std::string_view> pieces;
  const auto put = [&](std::string_view piece) {
    runtime.charge(sizeof piece);
    pieces.push_back(piece);
  };
  for (;;) {
    const size_t before = text.size();
    text = from_right ? strip_spaces(text, false, true) : strip_spaces(text, true, false);
    runtime.pass_slowly(before - text.size());
    if (text.empty()) break;
    if (most-- == 0) {
      put(text);
      break;
    }
    const size_t size = word_size(text, from_right);
    runtime.pass_slowly(size);
    put(from_right ? text.substr(text.size() - size) : text.substr(0, size));
    if (from_right)
      text.remove_suffix(size);
    else
      text.remove_prefix(size);
  }
  if (from_right) std::ranges::reverse(pieces);
  return pieces;
}

std::vector<std::string_view> split_at(Runtime& runtime, std::string_view text, std::string_view separator, Int most,
                                       bool from_right) {
  const Finder finder(runtime, separator, from_right);
  std::vector<std::string_view> pieces;
  const auto put = [&](std::string_view piece) {
    runtime.charge(sizeof piece);
    pieces.push_back(piece);
  };
  for (; most != 0; --most) {
    const size_t place = finder.find(text);
    if (place == std::string_view::npos) break;
    const size_t behind = place + separator.size();
    put(from_right ? text.substr(behind) : text.substr(0, place));
    text = from_right ? text.substr(0, place) : text.substr(behind);
  }
  put(text);
  if (from_right) std::ranges::reverse(pieces);
  return pieces;
}

}  // namespace lockstep::text::jinja
