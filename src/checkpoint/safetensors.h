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

// A safetensors file of these tensors, as bytes: the same that the reference library writes (tensors with the widest
// type first, then by name; the header padded to a multiple of 8 bytes). A tensor may have a row stride. FormatError:
// two tensors have one name, or a tensor has no dimensions.
std::string safetensors_bytes(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata);

// Writes the same bytes by calls of `put`, in order and without copying large tensors. With `read`, the data pointers
// of `tensors` are ignored: read(i) is called when the values of tensors[i] are to be written, and what it returns must
// stay valid until the next call.
using PutBytes = std::function<void(std::string_view bytes)>;
using ReadTensor = std::function<ConstTensor(size_t tensor)>;
void put_safetensors(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata,
                     const PutBytes& put, const ReadTensor& read = {});

}  // namespace lockstep::checkpoint
