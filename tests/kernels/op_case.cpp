#include "kernels/op_case.h"

#include <cmath>
#include <limits>

#include "core/random.h"
#include "kernels/pack.h"

namespace lockstep::kernels::testing {

namespace {

int64_t count_of(std::initializer_list<int64_t> dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

std::vector<BFloat16> rounded(const std::vector<float>& values) {
  std::vector<BFloat16> result;
  result.reserve(values.size());
  for (const float value : values) result.push_back(to_bf16(value));
  return result;
}

}  // namespace

Tensor Workbench::factor_a(const std::vector<float>& values, int64_t in, int64_t rank) {
  if (stream.device() == Device::cpu) return activations(values, {in, rank});
  std::vector<float> transposed(values.size());
  for (int64_t i = 0; i < in; ++i)
    for (int64_t r = 0; r < rank; ++r)
      transposed[static_cast<size_t>(r * in + i)] = values[static_cast<size_t>(i * rank + r)];
  return activations(transposed, {rank, in});
}

Tensor Workbench::f32(const std::vector<float>& values, std::initializer_list<int64_t> dims) {
  const Tensor tensor = arena.alloc(dims);
  upload(tensor.data, values.data(), values.size() * sizeof(float), stream);
  return tensor;
}

Tensor Workbench::activations(const std::vector<float>& values, std::initializer_list<int64_t> dims) {
  if (stream.device() == Device::cpu) return f32(values, dims);
  const Tensor tensor = arena.alloc(dims, DType::bf16);
  const std::vector<BFloat16> half = rounded(values);
  upload(tensor.data, half.data(), half.size() * sizeof(BFloat16), stream);
  return tensor;
}

std::span<const int32_t> Workbench::ints(const std::vector<int32_t>& values) {
  return upload(std::span<const int32_t>(values), arena, stream);
}

Tensor Workbench::poisoned_f32(std::initializer_list<int64_t> dims) {
  return f32(std::vector<float>(static_cast<size_t>(count_of(dims)), std::numeric_limits<float>::quiet_NaN()), dims);
}
Tensor Workbench::poisoned_activations(std::initializer_list<int64_t> dims) {
  return activations(std::vector<float>(static_cast<size_t>(count_of(dims)), std::numeric_limits<float>::quiet_NaN()),
                     dims);
}

PackedWeight Workbench::weight(const std::vector<float>& values, int64_t rows, int64_t depth) {
  const std::vector<BFloat16> half = rounded(values);
  const ConstTensor part(half.data(), DType::bf16, {rows, depth});
  return pack_weight(std::span(&part, 1), stream);
}

std::vector<float> Workbench::read(const ConstTensor& tensor) {
  const int64_t width = tensor.row_elements();
  const size_t row_bytes = static_cast<size_t>(width * dtype_bytes(tensor.dtype));
  std::vector<float> result;
  std::vector<std::byte> row(row_bytes);
  for (int64_t i = 0; i < tensor.shape[0]; ++i) {
    const auto* from = static_cast<const std::byte*>(tensor.data) + i * tensor.row_stride * dtype_bytes(tensor.dtype);
    download(row.data(), from, row_bytes, stream);
    for (int64_t j = 0; j < width; ++j)
      result.push_back(tensor.dtype == DType::f32 ? reinterpret_cast<const float*>(row.data())[j]
                                                  : to_f32(reinterpret_cast<const BFloat16*>(row.data())[j]));
  }
  return result;
}

std::vector<float> random_values(int64_t count, uint64_t seed, float scale) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = philox(seed, {0, 0, static_cast<uint32_t>(i >> 32), static_cast<uint32_t>(i)});
    values[static_cast<size_t>(i)] = to_f32(to_bf16((2 * uniform01(bits[0]) - 1) * scale));
  }
  return values;
}

std::vector<int32_t> random_ints(int64_t count, int32_t below, uint64_t seed) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    values[static_cast<size_t>(i)] =
        static_cast<int32_t>(philox(seed, {1, 0, 0, static_cast<uint32_t>(i)})[0] % static_cast<uint32_t>(below));
  return values;
}

}  // namespace lockstep::kernels::testing
