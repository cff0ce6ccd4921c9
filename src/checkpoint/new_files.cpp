#include "checkpoint/new_files.h"

#include <optional>
#include <utility>

#include "checkpoint/safetensors.h"
#include "core/hash.h"
#include "core/new_file.h"

namespace lockstep::checkpoint {

namespace {

// Bytes are hashed and written in pieces that stay in the cache between the two; short ones are collected.
constexpr size_t kPieceBytes = size_t{1} << 18;

class HashedFile {
 public:
  HashedFile(fs::NewFile& file, Sha256* hash) : file_(file), hash_(hash) {}

  void append(std::string_view bytes) {
    if (pending_.size() + bytes.size() <= kPieceBytes) {
      pending_ += bytes;
      return;
    }
    flush();
    for (; bytes.size() > kPieceBytes; bytes.remove_prefix(kPieceBytes)) write(bytes.substr(0, kPieceBytes));
    pending_ = bytes;
  }
  void flush() {
    write(pending_);
    pending_.clear();
  }

 private:
  void write(std::string_view bytes) {
    if (hash_ != nullptr) hash_->update(bytes);
    file_.append(bytes);
  }

  fs::NewFile& file_;
  Sha256* hash_;
  std::string pending_;
};

template <class Fill>
void write_file(const fs::Path& path, FileHashes* hashes, const std::string& name, const Fill& fill) {
  std::optional<Sha256> hash;
  if (hashes != nullptr) hash.emplace();
  fs::write_new_file(path, [&](fs::NewFile& file) {
    HashedFile hashed(file, hash ? &*hash : nullptr);
    fill(hashed);
    hashed.flush();
  });
  if (hash) (*hashes)[name] = hash->hex();
}

}  // namespace

NewFiles::NewFiles(fs::Path directory, FileHashes* hashes) : directory_(std::move(directory)), hashes_(hashes) {}

void NewFiles::write(const std::string& name, std::string_view bytes) const {
  write_file(directory_ / name, hashes_, name, [&](HashedFile& file) { file.append(bytes); });
}

void NewFiles::write_safetensors(const std::string& name, const NamedTensors& tensors,
                                 const std::map<std::string, std::string>& metadata) const {
  write_file(directory_ / name, hashes_, name, [&](HashedFile& file) {
    put_safetensors(tensors, metadata, [&](std::string_view bytes) { file.append(bytes); });
  });
}

}  // namespace lockstep::checkpoint
