#include "checkpoint/file_hash.h"

#include <algorithm>
#include <span>
#include <vector>

#include "core/hash.h"

namespace lockstep::checkpoint {

std::string file_sha256(const fs::Path& file, const fs::ReadRoot& root) {
  constexpr size_t kPieceBytes = size_t{1} << 20;
  const fs::File bytes(file, root);
  std::vector<std::byte> piece(std::min(kPieceBytes, bytes.size()));
  Sha256 hash;
  for (size_t place = 0; place < bytes.size(); place += piece.size()) {
    const size_t size = std::min(piece.size(), bytes.size() - place);
    bytes.read(piece.data(), place, size);
    hash.update(std::span(piece).first(size));
  }
  return hash.hex();
}

}  // namespace lockstep::checkpoint
