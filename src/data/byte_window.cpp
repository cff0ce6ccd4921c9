#include "data/byte_window.h"

#include <algorithm>

namespace lockstep::data {

ByteWindow::ByteWindow(const ByteSource& source, size_t bytes_at_once)
    : source_(source), bytes_at_once_(bytes_at_once) {
  if (source_.in_memory()) held_ = source_.read(0, source_.size(), room_);
}

void ByteWindow::move_to(size_t begin, size_t bytes) {
  held_ = {};  // nothing is held where reading fails
  held_ = source_.read(begin, std::min(std::max(bytes, bytes_at_once_), source_.size() - begin), room_);
  begin_ = begin;
}

std::string_view ByteWindow::view(size_t begin, size_t end) {
  const bool held = begin >= begin_ && end <= begin_ + held_.size();
  if (!held && begin < end) move_to(begin, end - begin);
  return begin < end ? held_.substr(begin - begin_, end - begin) : std::string_view();
}

size_t ByteWindow::find(char wanted, size_t place) {
  if (place >= size()) return size();
  if (place - begin_ >= held_.size()) move_to(place, 1);
  for (size_t looked_at = place;;) {
    const size_t found = held_.find(wanted, looked_at - begin_);
    if (found != std::string_view::npos) return begin_ + found;
    looked_at = begin_ + held_.size();
    if (looked_at == size()) return size();
    move_to(place, 2 * (looked_at - place));  // twice as much, so that a long line is not read again and again
  }
}

}  // namespace lockstep::data
