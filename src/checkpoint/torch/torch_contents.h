// What the pickle of a torch file says: storages, and tensors as views of them. Internal to checkpoint; see
// torch/torch_file.h.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/torch/pickle.h"
#include "core/tensor.h"

namespace lockstep::checkpoint {

struct TorchStorage {
  DType dtype = DType::f32;
  int64_t elements = 0;
};

struct TorchView {
  std::string name, storage;  // key of its storage
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, 4> shape{}, strides{};  // elements
  int64_t offset = 0;                         // of its first element in the storage

  int64_t elements() const;
  bool contiguous() const;
};

struct TorchContents {
  std::map<std::string, TorchStorage> storages;
  std::vector<TorchView> views;  // each within its storage, no element in two places
};

// Of the pickle of the dictionary. FormatError naming `where` and the tensor.
TorchContents torch_contents(const Pickle& pickle, const std::string& where);

// The names that may occur in it.
std::span<const std::string_view> torch_globals();

}  // namespace lockstep::checkpoint
