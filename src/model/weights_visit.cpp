// The inverse of loading: rebuilds every tensor as the file had it from what the kernels read.
#include <algorithm>
#include <cstring>

#include "core/half.h"
#include "core/transfer.h"
#include "kernels/pack.h"
#include "model/weight_slots.h"

namespace lockstep::model {

namespace {

// This is exact, because the values came from this type.
void narrow(void* out, const float* values, int64_t count, DType dtype) {
  if (dtype == DType::f32) {
    std::memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* bits = static_cast<uint16_t*>(out);
  for (int64_t i = 0; i < count; ++i)
    bits[i] =
        dtype == DType::f16 ? to_f16(values[i]).bits : static_cast<uint16_t>(std::bit_cast<uint32_t>(values[i]) >> 16);
}

}  // namespace

void Weights::visit(const ModelSpec& config, const std::function<void(const NamedTensor&)>& visit,
                    Stream& stream) const {
  std::vector<TensorPlace> places = tensor_places(config);
  if (tied_copy) places.push_back({.name = "lm_head.weight", .shape = {config.vocab_size, config.width}});
  const auto by_name = [](const auto& a, const auto& b) { return a.name < b.name; };
  std::sort(places.begin(), places.end(), by_name);
  std::vector<const Extra*> sorted_extras;
  for (const Extra& extra : extras) sorted_extras.push_back(&extra);
  std::sort(sorted_extras.begin(), sorted_extras.end(),
            [&](const Extra* a, const Extra* b) { return by_name(*a, *b); });

  size_t next_extra = 0;
  const auto visit_extras_before = [&](const std::string* name) {
    for (; next_extra < sorted_extras.size() && (!name || sorted_extras[next_extra]->name < *name); ++next_extra)
      visit({sorted_extras[next_extra]->name, sorted_extras[next_extra]->view});
  };
  for (const TensorPlace& place : places) {
    visit_extras_before(&place.name);
    if (place.is_matrix()) {
      const kernels::PackedWeight* const packed = &linear_slot(*this, place)->weight;
      const Buffer copy(static_cast<size_t>(place.shape[0] * place.shape[1] * dtype_bytes(packed->dtype)),
                        Buffer::Fill::none);
      Tensor tensor(copy.data(), packed->dtype, {place.shape[0], place.shape[1]});
      kernels::unpack_rows(tensor, *packed, place.row_begin, place.row_begin + place.shape[0], stream);
      visit({place.name, tensor});
    } else {
      const Vector& vector = vector_slot(*this, place);
      const Buffer copy(static_cast<size_t>(place.shape[0] * dtype_bytes(vector.dtype)), Buffer::Fill::none);
      narrow(copy.data(), host_copy(vector.values, stream).f32() + place.row_begin, place.shape[0], vector.dtype);
      visit({place.name, ConstTensor(copy.data(), vector.dtype, {place.shape[0]})});
    }
  }
  visit_extras_before(nullptr);
}

}  // namespace lockstep::model
