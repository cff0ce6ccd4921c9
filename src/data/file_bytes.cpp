#include "data/file_bytes.h"

#include <algorithm>

namespace lockstep::data {

FileBytes::FileBytes(const std::string& path) {
  constexpr size_t kPieceBytes = 1 << 20, kMagicBytes = 16;
  std::string piped;
  if (fs::is_file(path))
    file_.emplace(path);
  else
    piped = fs::read_file(path);
  const ByteSource raw = file_ ? ByteSource(*file_) : ByteSource(piped);
  std::vector<char> room;
  compression_ = detect_compression(raw.read(0, std::min(kMagicBytes, raw.size()), room));
  if (compression_ == Compression::none && file_) {
    source_ = raw;
    return;
  }
  size_t place = 0;
  const auto next_piece = [&] {
    const std::string_view piece = raw.read(place, std::min(kPieceBytes, raw.size() - place), room);
    place += piece.size();
    return piece;
  };
  decompress(compression_, next_piece, path, [&](std::string_view piece) { spool_.append(piece); });
  file_.reset();
  source_ = spool_.source();
}

}  // namespace lockstep::data
