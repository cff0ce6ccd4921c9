#include "checkpoint/file_hash.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "core/error.h"
#include "core/hash.h"

namespace lockstep::checkpoint {

std::string file_sha256(const fs::Path& file) {
  constexpr size_t kPieceBytes = size_t{1} << 20;
  std::ifstream stream(file, std::ios::binary);
  std::vector<char> piece(kPieceBytes);
  Sha256 hash;
  while (stream) {
    stream.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hash.update(std::string_view(piece.data(), static_cast<size_t>(stream.gcount())));
  }
  if (!stream.eof()) throw DataError({.what = "cannot read file", .where = file.string(), .got = std::strerror(errno)});
  return hash.hex();
}

}  // namespace lockstep::checkpoint
