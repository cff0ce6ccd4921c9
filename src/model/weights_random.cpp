#include "core/error.h"
#include "core/half.h"
#include "core/transfer.h"
#include "kernels/pack.h"
#include "kernels/random.h"
#include "model/weight_slots.h"

namespace lockstep::model {

namespace {

// Uniform with deviation 0.02: as far as a matmul of hundreds of them can tell, the usual normal start.
constexpr float kBound = 0.034641016f;

// Rounded to the storage type.
float stored(float value, DType dtype) {
  if (dtype == DType::bf16) return to_f32(to_bf16(value));
  return dtype == DType::f16 ? to_f32(to_f16(value)) : value;
}

kernels::PackedWeight random_matrix(int64_t rows, int64_t cols, DType dtype, kernels::WeightFormat format,
                                    uint64_t seed, uint32_t tensor, Region& region, Stream& stream) {
  if (stream.device() == Device::cuda) {  // a packed bf16 weight is the plain matrix there: it is drawn in place
    kernels::PackedWeight weight{.rows = rows, .depth = cols, .dtype = dtype, .format = format};
    kernels::require_format(weight, kernels::WeightFormat::bf16, "Weights::random");
    weight.panels = Buffer(kernels::packed_bytes(format, rows, cols, Device::cuda), Buffer::Fill::none, Device::cuda);
    kernels::fill_uniform(Tensor(weight.panels.data(), DType::bf16, {rows, cols}), kBound, seed, tensor, stream);
    return weight;
  }
  const DType drawn = dtype == DType::bf16 ? DType::bf16 : DType::f32;
  const Buffer values(static_cast<size_t>(rows * cols * dtype_bytes(drawn)), Buffer::Fill::none);
  kernels::fill_uniform(Tensor(values.data(), drawn, {rows, cols}), kBound, seed, tensor, stream);
  std::vector<Float16> halves(static_cast<size_t>(dtype == DType::f16 ? rows * cols : 0));
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = to_f16(values.f32()[i]);
  const NamedTensor whole{.name = {}, .tensor = {halves.empty() ? values.data() : halves.data(), dtype, {rows, cols}}};
  const NamedTensor* const part = &whole;
  return kernels::pack_weight({&part, 1}, format, stream, &region);
}

Vector random_vector(int64_t size, bool norm, DType dtype, uint64_t seed, uint32_t tensor, Stream& stream) {
  std::vector<float> values(static_cast<size_t>(size), 1.0f);
  for (size_t i = 0; !norm && i < values.size(); ++i)
    values[i] = stored(kernels::uniform_values(kBound, seed, tensor, i / 4)[i % 4], dtype);
  return {.values = device_copy(values.data(), values.size() * sizeof(float), stream), .size = size, .dtype = dtype};
}

}  // namespace

std::shared_ptr<const Weights> Weights::random(const ModelSpec& config, DType dtype, uint64_t seed, Stream& stream) {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
    throw DTypeError({.what = "weights cannot have this type", .got = dtype_name(dtype), .wanted = "f32, bf16 or f16"});
  const std::vector<TensorPlace> places = tensor_places(config);
  auto weights = std::make_shared<Weights>();
  weights->layers.resize(static_cast<size_t>(config.layers));
  Region region;
  // Stacked siblings are drawn as one matrix.
  for_each_group(places, [&](std::span<const TensorPlace> group) {
    const TensorPlace& place = group.front();
    int64_t rows = 0;
    for (const TensorPlace& sibling : group) rows += sibling.shape[0];
    const auto tensor = static_cast<uint32_t>(&place - places.data());
    if (place.is_matrix()) {
      Linear& layer = *linear_slot(*weights, place);
      layer.weight = random_matrix(rows, place.shape[1], dtype, format_of(config, place, dtype, stream.device()), seed,
                                   tensor, region, stream);
      layer.site = place.site;
    } else {
      vector_slot(*weights, place) = random_vector(rows, !place.is_bias, dtype, seed, tensor, stream);
    }
  });
  return weights;
}

}  // namespace lockstep::model
