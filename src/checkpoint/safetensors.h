// checkpoint: names and bytes. Safetensors files, Hugging Face directories, PEFT directories, resume state.
//
//   includes    core, and lora/config.h for the fields of adapter_config.json; never the model
//   memory      nothing is mapped. Tensors of a base lie in open files until they are packed, those of other files in
//               memory; both live as long as the reader
//   threads     readers are immutable
//
// This header: the safetensors format (github.com/huggingface/safetensors).
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/fs.h"
#include "core/memory.h"
#include "core/named_tensor.h"

namespace lockstep::checkpoint {

class SafetensorsFile {
 public:
  // Reads the whole file and checks the header: size, UTF-8 JSON, duplicate names, known dtypes, offsets without holes
  // or overlaps that fill the file exactly, sizes equal to shape x dtype (with overflow checks). FormatError names file
  // and tensor. A scalar is read as [1]; more than four dimensions are a FormatError.
  // DataError: unreadable, or changed while it was read. ConfigError: it lies outside `root`.
  explicit SafetensorsFile(const fs::Path& path, const fs::ReadRoot& root = {});

  const NamedTensors& tensors() const { return tensors_; }  // in order of their bytes
  const ConstTensor* find(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const fs::Path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(bytes_.data()), bytes_.bytes()}; }

 private:
  fs::Path path_;
  Buffer bytes_;                   // stays where it is: tensors point into it
  std::vector<Buffer> realigned_;  // copies of tensors that begin at an address their type cannot have
  NamedTensors tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

// Bytes of a safetensors file with tensors in the reference writer's order (widest dtype first, then by name), header
// padded to 8. Tensors may be views with a row stride. FormatError for two tensors of one name and for a tensor without
// dimensions.
std::string safetensors_bytes(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata);

// The same bytes piece by piece, in order; large tensors are not copied. If `read` is given, only names, types and
// shapes of `tensors` are looked at, and it returns their values one by one: those of a tensor by its place in the
// list, which must last until it is called again.
using PutBytes = std::function<void(std::string_view bytes)>;
using ReadTensor = std::function<ConstTensor(size_t tensor)>;
void put_safetensors(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata,
                     const PutBytes& put, const ReadTensor& read = {});

}  // namespace lockstep::checkpoint
