#include "text/text_search.h"

#include <cstring>

namespace lockstep::text {

namespace {

constexpr size_t kBytesAtOnce = size_t{1} << 16;
constexpr size_t kSkippedFor = 32;  // as many bytes are skipped in the time in which one is compared

// The byte `place` bytes behind the end at which the search begins.
template <TextSearch::From from>
char byte_at(std::string_view text, size_t place) {
  return from == TextSearch::From::left ? text[place] : text[text.size() - 1 - place];
}

// Bytes up to and with the next `wanted`, of those behind `place`; 0 when there is none.
template <TextSearch::From from>
size_t distance_to(std::string_view text, size_t place, char wanted) {
  const size_t rest = text.size() - place;
  if constexpr (from == TextSearch::From::left) {
    const void* found = std::memchr(text.data() + place, wanted, rest);
    return found == nullptr ? 0 : static_cast<size_t>(static_cast<const char*>(found) - text.data()) - place + 1;
  } else {
    const void* found = ::memrchr(text.data(), wanted, rest);
    return found == nullptr ? 0 : rest - static_cast<size_t>(static_cast<const char*>(found) - text.data());
  }
}

template <TextSearch::From from>
std::vector<uint32_t> borders_of(std::string_view part) {
  std::vector<uint32_t> borders(part.size());
  uint32_t length = 0;
  for (size_t i = 1; i < part.size(); ++i) {
    const char next = byte_at<from>(part, i);
    while (length > 0 && next != byte_at<from>(part, length)) length = borders[length - 1];
    if (next == byte_at<from>(part, length)) ++length;
    borders[i] = length;
  }
  return borders;
}

}  // namespace

TextSearch::TextSearch(std::string_view part, From from)
    : part_(part),
      from_(from),
      border_(from == From::left ? borders_of<From::left>(part) : borders_of<From::right>(part)) {}

bool TextSearch::advance(std::string_view text, Progress& progress) const {
  return from_ == From::left ? advance_from<From::left>(text, progress) : advance_from<From::right>(text, progress);
}

template <TextSearch::From from>
bool TextSearch::advance_from(std::string_view text, Progress& progress) const {
  size_t place = progress.place, matched = progress.matched, compared = 0;
  const char first = byte_at<from>(part_, 0);
  while (place < text.size() && compared < kBytesAtOnce) {
    ++compared;
    if (matched == 0) {
      const size_t distance = distance_to<from>(text, place, first);
      if (distance == 0) {
        progress.compared += compared + (text.size() - place) / kSkippedFor;
        return false;
      }
      place += distance;
      compared += distance / kSkippedFor;
      matched = 1;
    } else if (byte_at<from>(text, place) == byte_at<from>(part_, matched)) {
      ++place;
      ++matched;
    } else {
      matched = border_[matched - 1];
    }
    if (matched == part_.size()) {
      progress.found = from == From::left ? place - matched : text.size() - place;
      progress.compared += compared;
      return false;
    }
  }
  progress.place = place;
  progress.matched = matched;
  progress.compared += compared;
  return place < text.size();
}

}  // namespace lockstep::text
