#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/random.h"
#include "core/transfer.h"
#include "model/half.h"
#include "model/weight_slots.h"

namespace lockstep::model {

namespace {

constexpr float kDeviation = 0.02f;

void store(void* out, int64_t i, float value, DType dtype) {
  if (dtype == DType::f32)
    static_cast<float*>(out)[i] = value;
  else
    static_cast<uint16_t*>(out)[i] = dtype == DType::bf16 ? to_bf16(value).bits : to_f16(value).bits;
}

// Box-Muller on counted bits, one row per task.
void fill_normal(Buffer& out, int64_t rows, int64_t cols, DType dtype, uint64_t seed, uint32_t tensor, Stream& stream) {
  stream.parallel(rows, [&](int64_t row, int) {
    for (int64_t i = 0; i < cols; i += 4) {
      const Counter counter{tensor, 0, static_cast<uint32_t>(row), static_cast<uint32_t>(i)};
      const auto bits = philox(seed, counter);
      for (int64_t j = 0; j < 4 && i + j < cols; ++j) {
        const size_t pair = static_cast<size_t>(j / 2 * 2);
        const float radius = std::sqrt(-2 * std::log(1 - uniform01(bits[pair])));
        const float angle = 2 * std::numbers::pi_v<float> * uniform01(bits[pair + 1]);
        store(out.data(), row * cols + i + j, kDeviation * radius * (j % 2 ? std::sin(angle) : std::cos(angle)), dtype);
      }
    }
  });
}

bool is_norm(Slot slot) {
  return slot == Slot::final_norm || slot == Slot::input_norm || slot == Slot::post_norm || slot == Slot::q_norm ||
         slot == Slot::k_norm;
}

}  // namespace

std::shared_ptr<const Weights> Weights::random(const ModelConfig& config, DType dtype, uint64_t seed, Stream& stream) {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
    throw DTypeError({.what = "weights cannot have this type", .got = dtype_name(dtype), .wanted = "f32, bf16 or f16"});
  const std::vector<TensorPlace> places = tensor_places(config);
  auto weights = std::make_shared<Weights>();
  weights->layers.resize(static_cast<size_t>(config.layers));
  for (size_t begin = 0, end; begin < places.size(); begin = end) {
    // Stacked siblings are drawn as one matrix.
    int64_t rows = 0;
    for (end = begin;
         end < places.size() && places[end].slot == places[begin].slot && places[end].layer == places[begin].layer;
         ++end)
      rows += places[end].shape[0];
    const int64_t cols = places[begin].shape.size() == 2 ? places[begin].shape[1] : 1;
    Buffer values(static_cast<size_t>(rows * cols * dtype_bytes(dtype)), Buffer::Fill::none);
    fill_normal(values, rows, cols, dtype, seed, static_cast<uint32_t>(begin), stream);
    if (kernels::PackedWeight* packed = packed_slot(*weights, places[begin])) {
      const ConstTensor part(values.data(), dtype, {rows, cols});
      *packed = kernels::pack_weight({&part, 1}, stream);
      continue;
    }
    Vector& vector = vector_slot(*weights, places[begin]);
    vector.dtype = dtype;
    vector.size = rows;
    std::vector<float> decoded(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) {
      const uint16_t bits = dtype == DType::f32 ? 0 : static_cast<const uint16_t*>(values.data())[i];
      const float drawn = dtype == DType::f32    ? values.f32()[i]
                          : dtype == DType::bf16 ? to_f32(BFloat16{bits})
                                                 : to_f32(Float16{bits});
      decoded[static_cast<size_t>(i)] = is_norm(places[begin].slot) ? 1.0f : drawn;
    }
    vector.values = device_copy(decoded.data(), decoded.size() * sizeof(float), stream);
  }
  return weights;
}

}  // namespace lockstep::model
