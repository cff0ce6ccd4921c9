// New adapters: random factors, and what begins with values of the base.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "core/half.h"
#include "core/transfer.h"
#include "kernels/pack.h"
#include "load/adapter.h"
#include "lora/init.h"
#include "model/adapter_extras.h"
#include "model/weight_slots.h"

namespace lockstep::load {

namespace {

// Weights and biases of the base by module, as f32 in host memory.
class BaseValues {
 public:
  explicit BaseValues(const Base& base) : weights_(base.model->weights()), stream_(*base.stream) {
    for (const model::TensorPlace& place : model::tensor_places(base.config)) places_[place.name] = place;
  }

  // [rows, cols] as in the file, into `to`.
  void weight(const lora::Module& module, float* to) const {
    const auto place = places_.find(module.name + ".weight");
    const bool tied_head = place == places_.end();  // its weight is the embedding's
    const kernels::PackedWeight& packed =
        tied_head ? weights_.head_weight() : model::linear_slot(weights_, place->second)->weight;
    const int64_t begin = tied_head ? 0 : place->second.row_begin;
    const int64_t rows = module.kind == lora::ModuleKind::embedding ? module.in : module.out;
    const Buffer stored(static_cast<size_t>(rows * packed.depth * dtype_bytes(packed.dtype)), Buffer::Fill::none);
    kernels::unpack_rows(Tensor(stored.data(), packed.dtype, {rows, packed.depth}), packed, begin, begin + rows,
                         stream_);
    widen(stored.data(), packed.dtype, rows * packed.depth, to);
  }

  void bias(const lora::Module& module, float* to) const {
    const model::TensorPlace& place = places_.at(module.name + ".bias");
    const Buffer values = host_copy(model::vector_slot(weights_, place).values, stream_);
    std::memcpy(to, values.f32() + place.row_begin, static_cast<size_t>(module.out) * sizeof(float));
  }

 private:
  static void widen(const void* from, DType dtype, int64_t count, float* to) {
    if (dtype == DType::f32) {
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
      return;
    }
    for (int64_t i = 0; i < count; ++i)
      to[i] = dtype == DType::bf16 ? to_f32(static_cast<const BFloat16*>(from)[i])
                                   : to_f32(static_cast<const Float16*>(from)[i]);
  }

  const model::Weights& weights_;
  Stream& stream_;
  std::map<std::string, model::TensorPlace> places_;
};

void decompose_base(const lora::AdapterLayout& layout, const BaseValues& base, uint64_t seed, Buffer& flat,
                    const Decomposed& decomposed) {
  for (const lora::Pair& pair : layout.pairs) {
    const auto start = std::chrono::steady_clock::now();
    const Buffer weight(static_cast<size_t>(pair.out * pair.in) * sizeof(float), Buffer::Fill::none);
    float* to = weight.f32();
    for (const lora::Module& module : pair.modules) {
      base.weight(module, to);
      to += module.out * module.in;
    }
    lora::begin_with_base(layout, pair, ConstTensor(weight.f32(), DType::f32, {pair.out, pair.in}), seed, flat);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (decomposed) decomposed(pair, seconds.count());
  }
}

const lora::Pair& pair_of(const lora::AdapterLayout& layout, const lora::Module& module) {
  for (const int index : layout.pairs_at(module.site)) {
    const lora::Pair& pair = layout.pairs[static_cast<size_t>(index)];
    if (module.out_begin >= pair.out_begin && module.out_begin < pair.out_begin + pair.out) return pair;
  }
  throw FormatError({.what = "a magnitude has no LoRA factors", .where = module.name});
}

// m = |W + scale B A|, row by row; where first values are subtracted, |W|.
void begin_magnitudes(const lora::AdapterLayout& layout, const lora::OwnTensors& own, const BaseValues& base,
                      Buffer& flat) {
  const lora::Module& module = own.module;
  const lora::Pair& pair = pair_of(layout, module);
  const Buffer weight(static_cast<size_t>(module.out * module.in) * sizeof(float), Buffer::Fill::none);
  base.weight(module, weight.f32());
  const float* const a = flat.f32() + pair.a_offset;  // [in, rank]
  std::vector<float> b(static_cast<size_t>(pair.rank));
  for (int64_t row = 0; row < module.out; ++row) {
    double squares = 0;
    for (int64_t k = 0; k < pair.rank; ++k)
      b[static_cast<size_t>(k)] = flat.f32()[pair.b_offset + k * pair.out + module.out_begin - pair.out_begin + row];
    const bool has_update =
        pair.a0_offset == lora::kAbsent && std::ranges::any_of(b, [](float value) { return value != 0; });
    for (int64_t col = 0; col < module.in; ++col) {
      float value = weight.f32()[row * module.in + col];
      if (has_update) value += pair.scale * std::inner_product(b.begin(), b.end(), a + col * pair.rank, 0.0f);
      squares += static_cast<double>(value) * value;
    }
    flat.f32()[own.magnitude + row] = static_cast<float>(std::sqrt(squares));
  }
}

}  // namespace

lora::AdapterVersion fresh_adapter(const lora::LoraConfig& config, const Base& base, uint64_t seed,
                                   const Decomposed& decomposed) {
  lora::AdapterVersion adapter{.policy = {.version = 0}, .base = base.model->version()};
  adapter.layout = lora::resolve_layout(config, model::linear_modules(base.config));
  const lora::AdapterLayout& layout = *adapter.layout;
  lora::check_ranks(layout, base.stream->device());
  lora::require_possible_init(layout);
  Buffer flat = lora::initial_weights(layout, seed);
  const BaseValues values(base);
  if (layout.config.init.changes_base()) decompose_base(layout, values, seed, flat, decomposed);
  for (const lora::OwnTensors& own : layout.own) {
    if (own.magnitude != lora::kAbsent) begin_magnitudes(layout, own, values, flat);
    if (own.bias != lora::kAbsent) values.bias(own.module, flat.f32() + own.bias);
    if (own.weight != lora::kAbsent) values.weight(own.module, flat.f32() + own.weight);
  }
  adapter.weights = std::make_shared<const Buffer>(lora::place_weights(std::move(flat), layout, *base.stream));
  return model::with_extras(std::move(adapter), base.model->weights(), *base.stream);
}

}  // namespace lockstep::load
