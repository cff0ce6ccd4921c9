#include <algorithm>
#include <utility>
#include <vector>

#include "core/transfer.h"
#include "kernels/adamw.h"
#include "kernels/kernels.h"
#include "lora/adapter.h"

namespace lockstep::lora {

namespace {

// Whether kernels read a copy of the weights, rounded to activations.
bool has_working_copy(Device device) {
  return kernels::activation_dtype(device) != DType::f32;
}

}  // namespace

size_t weight_bytes(const AdapterLayout& layout, Device device) {
  const size_t bytes_each = sizeof(float) + (has_working_copy(device) ? sizeof(BFloat16) : 0);
  return static_cast<size_t>(layout.num_floats) * bytes_each;
}

Tensor master_weights(const Buffer& weights, const AdapterLayout& layout) {
  return Tensor(weights.data(), DType::f32, {layout.num_floats});
}

Tensor working_weights(const Buffer& weights, const AdapterLayout& layout) {
  if (!has_working_copy(weights.device())) return {};
  return Tensor(weights.f32() + layout.num_floats, DType::bf16, {layout.num_floats});
}

void transpose_working(const Buffer& weights, const AdapterLayout& layout, Stream& stream) {
  std::vector<kernels::FlatMatrix> matrices;
  for (const Pair& pair : layout.pairs) {
    if (pair.of_embedding()) continue;
    for (const int64_t offset : {pair.a_offset, pair.a0_offset})
      if (offset != kAbsent) matrices.push_back({.offset = offset, .rows = pair.in, .cols = pair.rank});
  }
  kernels::round_transposed(working_weights(weights, layout), master_weights(weights, layout), matrices, stream);
}

void copy_untrained(const Buffer& to, const Buffer& from, const AdapterLayout& layout, Stream& stream) {
  const int64_t floats = layout.num_floats - layout.num_trained;
  if (floats == 0) return;
  const auto tail = [&](const Tensor& all) {
    return Tensor(static_cast<char*>(all.data) + layout.num_trained * dtype_bytes(all.dtype), all.dtype, {floats});
  };
  copy(tail(master_weights(to, layout)).data, tail(master_weights(from, layout)).data,
       static_cast<size_t>(floats) * sizeof(float), stream);
  const Tensor next = working_weights(to, layout);
  if (!next.empty()) kernels::round_to_working(tail(next), tail(master_weights(to, layout)), stream);
}

Buffer place_weights(Buffer host, const AdapterLayout& layout, Stream& stream) {
  if (!has_working_copy(stream.device())) return host;
  Buffer placed(weight_bytes(layout, stream.device()), Buffer::Fill::none, stream.device());
  upload(placed.data(), host.data(), static_cast<size_t>(layout.num_floats) * sizeof(float), stream);
  kernels::round_to_working(working_weights(placed, layout), master_weights(placed, layout), stream);
  transpose_working(placed, layout, stream);
  stream.synchronize();  // `host` ends here
  return placed;
}

Buffer host_weights(const Buffer& weights, const AdapterLayout& layout, Stream& stream) {
  Buffer host(static_cast<size_t>(layout.num_floats) * sizeof(float), Buffer::Fill::none);
  download(host.data(), weights.data(), host.bytes(), stream);
  return host;
}

const AdapterExtras::Site* AdapterExtras::at(int64_t site) const {
  const auto found = std::ranges::find(sites, site, &Site::site);
  return found == sites.end() ? nullptr : &*found;
}

ConstTensor AdapterVersion::working(int64_t offset, int64_t rows, int64_t cols) const {
  if (!has_working_copy(weights->device())) return ConstTensor(weights->f32() + offset, DType::f32, {rows, cols});
  const auto* working = static_cast<const BFloat16*>(working_weights(*weights, *layout).data);
  return ConstTensor(working + offset, DType::bf16, {rows, cols});
}

ConstTensor AdapterVersion::factor_a(const Pair& pair, int64_t offset) const {
  const bool transposed = has_working_copy(weights->device()) && !pair.of_embedding();
  return working(offset, transposed ? pair.rank : pair.in, transposed ? pair.in : pair.rank);
}

ConstTensor AdapterVersion::factor_b(const Pair& pair, int64_t offset) const {
  return working(offset, pair.rank, pair.out);
}

}  // namespace lockstep::lora
