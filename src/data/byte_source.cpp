#include "data/byte_source.h"

namespace lockstep::data {

std::string_view ByteSource::read(size_t begin, size_t bytes, std::vector<char>& room) const {
  if (file_ == nullptr) return memory_.substr(begin, bytes);
  if (room.size() < bytes) room.resize(bytes);
  file_->read(room.data(), begin, bytes);
  return {room.data(), bytes};
}

}  // namespace lockstep::data
