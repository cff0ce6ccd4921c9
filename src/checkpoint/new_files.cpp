#include "checkpoint/new_files.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "core/hash.h"
#include "core/new_file.h"

namespace lockstep::checkpoint {

namespace {

// Bytes are collected in a piece that stays in the cache until it is hashed and on its way to the disk.
constexpr size_t kPieceBytes = size_t{1} << 20;

class HashedFile {
 public:
  HashedFile(fs::NewFile& file, Sha256* hash, char* piece) : file_(file), hash_(hash), piece_(piece) {}

  void append(std::string_view bytes) {
    while (!bytes.empty()) {
      const size_t taken = std::min(bytes.size(), kPieceBytes - used_);
      std::memcpy(piece_ + used_, bytes.data(), taken);
      bytes.remove_prefix(taken);
      used_ += taken;
      if (used_ == kPieceBytes) write_piece();
    }
  }
  void write_piece() {
    const std::string_view bytes(piece_, std::exchange(used_, 0));
    if (hash_ != nullptr) hash_->update(bytes);
    file_.append_uncached(bytes);
  }

 private:
  fs::NewFile& file_;
  Sha256* hash_;
  char* piece_;
  size_t used_ = 0;
};

template <class Fill>
void write_file(const fs::Path& path, FileHashes* hashes, const std::string& name, char* piece, const Fill& fill) {
  std::optional<Sha256> hash;
  if (hashes != nullptr) hash.emplace();
  fs::write_new_file(path, [&](fs::NewFile& file) {
    HashedFile hashed(file, hash ? &*hash : nullptr, piece);
    fill(hashed);
    hashed.write_piece();
  });
  if (hash) (*hashes)[name] = hash->hex();
}

}  // namespace

NewFiles::NewFiles(fs::Path directory, FileHashes* hashes)
    : directory_(std::move(directory)),
      hashes_(hashes),
      memory_(kPieceBytes + fs::NewFile::kDirectBytes, Buffer::Fill::none) {
  void* begin = memory_.data();
  size_t room = memory_.bytes();
  piece_ = static_cast<char*>(std::align(fs::NewFile::kDirectBytes, kPieceBytes, begin, room));
}

void NewFiles::write(const std::string& name, std::string_view bytes) const {
  write_file(directory_ / name, hashes_, name, piece_, [&](HashedFile& file) { file.append(bytes); });
}

void NewFiles::write_safetensors(const std::string& name, const NamedTensors& tensors,
                                 const std::map<std::string, std::string>& metadata, const ReadTensor& read) const {
  write_file(directory_ / name, hashes_, name, piece_, [&](HashedFile& file) {
    put_safetensors(
        tensors, metadata, [&](std::string_view bytes) { file.append(bytes); }, read);
  });
}

}  // namespace lockstep::checkpoint
