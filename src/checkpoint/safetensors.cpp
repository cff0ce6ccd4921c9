#include "checkpoint/safetensors.h"

#include <cstring>
#include <utility>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/safetensors_layout.h"

namespace lockstep::checkpoint {

namespace {

void put_bytes(const ConstTensor& tensor, const PutBytes& put) {
  const auto put_row = [&](int64_t row, int64_t elements) {
    const int64_t size = dtype_bytes(tensor.dtype);
    put({static_cast<const char*>(tensor.data) + row * tensor.row_stride * size, static_cast<size_t>(elements * size)});
  };
  if (tensor.elements() == 0) return;
  if (tensor.contiguous()) return put_row(0, tensor.elements());
  for (int64_t row = 0; row < tensor[0]; ++row) put_row(row, tensor.row_elements());
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

void put_safetensors(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata,
                     const PutBytes& put, const ReadTensor& read) {
  const SafetensorsLayout layout(tensors, metadata);
  put(layout.header);
  for (const SafetensorsLayout::Place& place : layout.places)
    put_bytes(read ? read(place.tensor) : tensors[place.tensor].tensor, put);
}

std::string safetensors_bytes(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  std::string out;
  put_safetensors(tensors, metadata, [&](std::string_view bytes) { out += bytes; });
  return out;
}

}  // namespace lockstep::checkpoint
