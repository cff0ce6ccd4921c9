// The files of a directory that fs::write_directory_atomic makes, and their hashes, formed of the bytes on their way to
// the disk: nothing is read back.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "checkpoint/safetensors.h"
#include "core/fs.h"
#include "core/memory.h"
#include "core/named_tensor.h"

namespace lockstep::checkpoint {

using FileHashes = std::map<std::string, std::string>;  // SHA-256 in hexadecimal, by name in the directory

class NewFiles {
 public:
  // `hashes`, if given, gets an entry for each file that is written, and lives as long.
  explicit NewFiles(fs::Path directory, FileHashes* hashes = nullptr);

  // Creates directory/name; `name` may have directories in it, which are made. Nothing is synced: what makes the
  // directory does that. Large files go past the system's file cache. One file at a time. ResourceError: also if the
  // file exists. FormatError as safetensors_bytes.
  void write(const std::string& name, std::string_view bytes) const;
  void write_safetensors(const std::string& name, const NamedTensors& tensors,
                         const std::map<std::string, std::string>& metadata, const ReadTensor& read = {}) const;

 private:
  fs::Path directory_;
  FileHashes* hashes_;
  Buffer memory_;
  char* piece_ = nullptr;  // in memory_: bytes on their way to the disk
};

}  // namespace lockstep::checkpoint
