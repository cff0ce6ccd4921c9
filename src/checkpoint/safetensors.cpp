#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/safetensors_header.h"
#include "core/error.h"
#include "core/json.h"

namespace lockstep::checkpoint {

namespace {

void append_bytes(std::string& out, const ConstTensor& tensor) {
  const auto append = [&](int64_t row, int64_t elements) {
    const int64_t size = dtype_bytes(tensor.dtype);
    out.append(static_cast<const char*>(tensor.data) + row * tensor.row_stride * size,
               static_cast<size_t>(elements * size));
  };
  if (tensor.elements() == 0) return;
  if (tensor.contiguous()) return append(0, tensor.elements());
  for (int64_t row = 0; row < tensor[0]; ++row) append(row, tensor.row_elements());
}

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::Path& path, const fs::ReadRoot& root)
    : path_(path), bytes_(fs::read_buffer(path, root)) {
  SafetensorsHeader header(bytes(), bytes().size(), path.string());
  metadata_ = std::move(header.metadata);
  tensors_.reserve(header.entries.size());
  for (const SafetensorsHeader::Entry& entry : header.entries) {
    const std::byte* memory = bytes().data() + header.bytes + entry.begin;
    if (entry.end > entry.begin &&
        reinterpret_cast<uintptr_t>(memory) % static_cast<uint64_t>(dtype_bytes(entry.dtype)) != 0) {
      realigned_.emplace_back(entry.end - entry.begin, Buffer::Fill::none);
      std::memcpy(realigned_.back().data(), memory, entry.end - entry.begin);
      memory = static_cast<const std::byte*>(realigned_.back().data());
    }
    index_[entry.name] = tensors_.size();
    tensors_.push_back({entry.name, entry.tensor(memory)});
  }
}

const ConstTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second].tensor;
}

std::string safetensors_bytes(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensor*> sorted;
  for (const NamedTensor& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const int place_a = safetensors_dtype_place(a->tensor.dtype), place_b = safetensors_dtype_place(b->tensor.dtype);
    return std::tie(place_a, a->name) < std::tie(place_b, b->name);
  });
  OrderedJson header = OrderedJson::object();
  if (!metadata.empty()) header[kSafetensorsMetadataKey] = metadata;
  uint64_t place = 0;
  for (const NamedTensor* named : sorted) {
    const ConstTensor& tensor = named->tensor;
    if (tensor.rank == 0 || header.contains(named->name) || named->name == kSafetensorsMetadataKey)
      throw FormatError({.what = "a tensor cannot be written",
                         .where = named->name,
                         .got = tensor.rank == 0 ? "no dimensions" : "a name that is taken"});
    const uint64_t end = place + static_cast<uint64_t>(tensor.elements() * dtype_bytes(tensor.dtype));
    header[named->name] = {{"dtype", safetensors_dtype(tensor.dtype)},
                           {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.begin() + tensor.rank)},
                           {"data_offsets", {place, end}}};
    place = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string out;
  out.reserve(8 + text.size() + place);
  for (int i = 0; i < 8; ++i) out += static_cast<char>(text.size() >> (8 * i) & 255);
  out += text;
  for (const NamedTensor* named : sorted) append_bytes(out, named->tensor);
  return out;
}

}  // namespace lockstep::checkpoint
