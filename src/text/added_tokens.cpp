#include "text/added_tokens.h"

#include <algorithm>

#include "core/utf8.h"
#include "text/unicode.h"

namespace lockstep::text {

namespace {

uint64_t edge(uint32_t node, char byte) {
  return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
}

// Where the last character of `text` begins; `text` must be valid UTF-8 and not empty.
size_t last_character(std::string_view text) {
  size_t place = text.size() - 1;
  while (place > 0 && (static_cast<uint8_t>(text[place]) & 0xC0) == 0x80) --place;
  return place;
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && unicode::is_word(read_utf8(text.substr(last_character(text))).code);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && unicode::is_word(read_utf8(text).code);
}

// Length of `text` without the white space at its end.
size_t without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    const size_t place = last_character(text);
    if (!unicode::is_white_space(read_utf8(text.substr(place)).code)) break;
    text = text.substr(0, place);
  }
  return text.size();
}

size_t leading_space(std::string_view text) {
  size_t size = 0;
  while (size < text.size()) {
    const Utf8Char next = read_utf8(text.substr(size));
    if (!unicode::is_white_space(next.code)) break;
    size += next.size;
  }
  return size;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), ends_{-1} {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    uint32_t node = 0;
    for (char byte : tokens_[i].content) {
      const auto [place, fresh] = edges_.try_emplace(edge(node, byte), static_cast<uint32_t>(ends_.size()));
      if (fresh) ends_.push_back(-1);
      node = place->second;
    }
    if (ends_[node] < 0) ends_[node] = static_cast<int32_t>(i);
    const uint8_t first = static_cast<uint8_t>(tokens_[i].content[0]);
    first_byte_[first] = true;
    if (i == 0) only_first_byte_ = first;
    if (only_first_byte_ != first) only_first_byte_ = -1;
  }
}

size_t AddedTokens::next_first_byte(std::string_view text, size_t from) const {
  if (tokens_.empty()) return text.size();
  if (only_first_byte_ >= 0) return std::min(text.find(static_cast<char>(only_first_byte_), from), text.size());
  while (from < text.size() && !first_byte_[static_cast<uint8_t>(text[from])]) ++from;
  return from;
}

AddedTokens::Match AddedTokens::find(std::string_view text, size_t from) const {
  for (size_t begin = next_first_byte(text, from); begin < text.size(); begin = next_first_byte(text, begin + 1)) {
    Match longest;
    uint32_t node = 0;
    for (size_t place = begin; place < text.size(); ++place) {
      const auto next = edges_.find(edge(node, text[place]));
      if (next == edges_.end()) break;
      node = next->second;
      if (ends_[node] >= 0) longest = {begin, place + 1, &tokens_[static_cast<size_t>(ends_[node])]};
    }
    if (longest.token != nullptr) return longest;
  }
  return {};
}

void AddedTokens::split(std::string_view text, const std::function<void(Span)>& plain,
                        const std::function<void(int32_t, Span)>& token) const {
  size_t done = 0;
  for (Match match = find(text, 0); match.token != nullptr; match = find(text, match.end)) {
    // A match that is refused still hides what lies under it, as in the library.
    if (match.token->single_word &&
        (ends_with_word(text.substr(0, match.begin)) || starts_with_word(text.substr(match.end))))
      continue;
    size_t begin = match.begin, end = match.end;
    if (match.token->lstrip) begin = std::max(without_trailing_space(text.substr(0, begin)), done);
    if (match.token->rstrip) end += leading_space(text.substr(end));
    if (done < begin) plain({done, begin});
    token(match.token->id, {begin, end});
    done = end;
  }
  if (done < text.size()) plain({done, text.size()});
}

}  // namespace lockstep::text
