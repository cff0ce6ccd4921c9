#include "checkpoint/safetensors_layout.h"

#include <algorithm>
#include <tuple>

#include "checkpoint/safetensors_header.h"
#include "core/error.h"
#include "core/json.h"

namespace lockstep::checkpoint {

SafetensorsLayout::SafetensorsLayout(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  for (size_t i = 0; i < tensors.size(); ++i) places.push_back({.tensor = i});
  std::sort(places.begin(), places.end(), [&](const Place& a, const Place& b) {
    const NamedTensor &first = tensors[a.tensor], &second = tensors[b.tensor];
    const int place_a = safetensors_dtype_place(first.tensor.dtype),
              place_b = safetensors_dtype_place(second.tensor.dtype);
    return std::tie(place_a, first.name) < std::tie(place_b, second.name);
  });
  OrderedJson entries = OrderedJson::object();
  if (!metadata.empty()) entries[kSafetensorsMetadataKey] = metadata;
  uint64_t data_bytes = 0;
  for (Place& place : places) {
    const NamedTensor& named = tensors[place.tensor];
    const ConstTensor& tensor = named.tensor;
    if (tensor.rank == 0 || entries.contains(named.name) || named.name == kSafetensorsMetadataKey)
      throw FormatError({.what = "a tensor cannot be written",
                         .where = named.name,
                         .got = tensor.rank == 0 ? "no dimensions" : "a name that is taken"});
    const uint64_t end = data_bytes + static_cast<uint64_t>(tensor.elements() * dtype_bytes(tensor.dtype));
    entries[named.name] = {{"dtype", safetensors_dtype(tensor.dtype)},
                           {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.begin() + tensor.rank)},
                           {"data_offsets", {data_bytes, end}}};
    place.begin = data_bytes;
    data_bytes = end;
  }
  std::string text = entries.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  for (int i = 0; i < 8; ++i) header += static_cast<char>(text.size() >> (8 * i) & 255);
  header += text;
  for (Place& place : places) place.begin += header.size();
  file_bytes = header.size() + data_bytes;
}

}  // namespace lockstep::checkpoint
