// str.split, rsplit and splitlines.
#include <algorithm>

#include "text/jinja/methods.h"
#include "text/utf8.h"

namespace lockstep::text::jinja {

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t place = 0; place < text.size();) {
    const Utf8Char next = read_utf8(text.substr(place));
    if (!is_line_break(next.code)) {
      place += next.size;
      continue;
    }
    size_t end = place + next.size;
    if (next.code == '\r' && end < text.size() && text[end] == '\n') ++end;
    lines.emplace_back(text.substr(begin, (keep_ends ? end : place) - begin));
    begin = place = end;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

// Runs of spaces cut; `most` cuts at most, the rest stays whole.
std::vector<std::string_view> split_spaces(std::string_view text, Int most, bool from_right) {
  std::vector<std::string_view> pieces;
  for (;;) {
    text = from_right ? strip_spaces(text, false, true) : strip_spaces(text, true, false);
    if (text.empty()) break;
    if (most-- == 0) {
      pieces.push_back(text);
      break;
    }
    size_t cut = 0;
    if (from_right) {
      size_t last_space_end = 0;
      for (size_t place = 0; place < text.size();) {
        const Utf8Char next = read_utf8(text.substr(place));
        place += next.size;
        if (is_space(next.code)) last_space_end = place;
      }
      pieces.push_back(text.substr(last_space_end));
      text = text.substr(0, last_space_end);
    } else {
      while (cut < text.size() && !is_space(read_utf8(text.substr(cut)).code)) cut += read_utf8(text.substr(cut)).size;
      pieces.push_back(text.substr(0, cut));
      text.remove_prefix(cut);
    }
  }
  if (from_right) std::ranges::reverse(pieces);
  return pieces;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, Int most, bool from_right) {
  std::vector<std::string_view> pieces;
  for (; most != 0; --most) {
    const size_t place = from_right ? text.rfind(separator) : text.find(separator);
    if (place == std::string_view::npos) break;
    const size_t behind = place + separator.size();
    pieces.push_back(from_right ? text.substr(behind) : text.substr(0, place));
    text = from_right ? text.substr(0, place) : text.substr(behind);
  }
  pieces.push_back(text);
  if (from_right) std::ranges::reverse(pieces);
  return pieces;
}

}  // namespace lockstep::text::jinja
