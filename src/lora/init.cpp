#include "lora/init.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "lora/counted_values.h"
#include "lora/decompose.h"
#include "lora/targets.h"
#include "lora/transpose.h"

namespace lockstep::lora {

namespace {

// Numbers of the tensors of pair p that values are counted by. A's is p itself.
enum class Drawn : uint32_t { a = 0, b = 1, rotation = 2, value_head = 3 };
uint32_t number_of(size_t pair, Drawn drawn) {
  constexpr uint32_t kStride = uint32_t{1} << 24;  // above the pairs of any model
  return static_cast<uint32_t>(pair) + static_cast<uint32_t>(drawn) * kStride;
}

std::span<float> a_of(const Pair& pair, Buffer& flat) {
  return {flat.f32() + pair.a_offset, static_cast<size_t>(pair.in * pair.rank)};
}
std::span<float> b_of(const Pair& pair, Buffer& flat) {
  return {flat.f32() + pair.b_offset, static_cast<size_t>(pair.rank * pair.out)};
}

[[noreturn]] void refuse(const AdapterLayout& layout, const Pair& pair, Fault fault) {
  fault.where = "for " + pair.module().name;
  reject(layout.config, "LoraConfig::init", "init_lora_weights", std::move(fault));
}

void draw_embedding(const AdapterLayout& layout, size_t index, uint64_t seed, Buffer& flat) {
  const Pair& pair = layout.pairs[index];
  const LoraInit& init = layout.config.init;
  switch (init.method) {
    case InitMethod::standard:
    case InitMethod::gaussian: return normal_values(seed, number_of(index, Drawn::a), b_of(pair, flat), 1);
    case InitMethod::random:
      normal_values(seed, number_of(index, Drawn::a), b_of(pair, flat), 1);
      return normal_values(seed, number_of(index, Drawn::b), a_of(pair, flat), 1);
    default: return;
  }
}

// out[row * row_stride + k * rank_stride] = (a normal matrix [rows, rank / 2] times every second row of Q, from row
// `first` on)[row, k] / 10
void draw_half(const std::vector<float>& q, int64_t rank, int64_t first, int64_t rows, uint64_t seed, uint32_t tensor,
               float* out, int64_t row_stride, int64_t rank_stride) {
  const int64_t half = rank / 2;
  std::vector<float> normal(static_cast<size_t>(rows * half));
  normal_values(seed, tensor, normal, 0.1);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t k = 0; k < rank; ++k) {
      float sum = 0;
      for (int64_t j = 0; j < half; ++j)
        sum += normal[static_cast<size_t>(row * half + j)] * q[static_cast<size_t>((2 * j + first) * rank + k)];
      out[row * row_stride + k * rank_stride] = sum;
    }
}

void draw_orthogonal(const AdapterLayout& layout, size_t index, uint64_t seed, Buffer& flat) {
  const Pair& pair = layout.pairs[index];
  std::vector<float> q(static_cast<size_t>(pair.rank * pair.rank));
  normal_values(seed, number_of(index, Drawn::rotation), q, 1);
  orthogonalize(q, pair.rank);
  draw_half(q, pair.rank, 0, pair.in, seed, number_of(index, Drawn::a), a_of(pair, flat).data(), pair.rank, 1);
  draw_half(q, pair.rank, 1, pair.out, seed, number_of(index, Drawn::b), b_of(pair, flat).data(), 1, pair.out);
}

void draw_linear(const AdapterLayout& layout, size_t index, uint64_t seed, Buffer& flat) {
  const Pair& pair = layout.pairs[index];
  const auto bound = [](int64_t inputs) { return 1.0f / std::sqrt(static_cast<float>(inputs)); };
  switch (layout.config.init.method) {
    case InitMethod::random:
      uniform_values(seed, number_of(index, Drawn::b), b_of(pair, flat), bound(pair.rank));
      [[fallthrough]];
    case InitMethod::standard:
      return uniform_values(seed, number_of(index, Drawn::a), a_of(pair, flat), bound(pair.in));
    case InitMethod::gaussian:
      return normal_values(seed, number_of(index, Drawn::a), a_of(pair, flat), 1.0 / static_cast<double>(pair.rank));
    case InitMethod::orthogonal: return draw_orthogonal(layout, index, seed, flat);
    case InitMethod::pissa:
    case InitMethod::olora: return;
  }
}

}  // namespace

void require_possible_init(const AdapterLayout& layout) {
  const LoraInit& init = layout.config.init;
  for (const Pair& pair : layout.pairs) {
    if (pair.of_embedding() && (init.method == InitMethod::orthogonal || init.changes_base()))
      refuse(layout, pair,
             {.what = "the embedding's factors have no such initialization",
              .got = lora_init_name(init),
              .wanted = "true, false or gaussian",
              .attempt = "targets without it, or modules_to_save"});
    if (init.method == InitMethod::orthogonal && pair.rank % 2 != 0)
      refuse(layout, pair,
             {.what = "the orthogonal initialization needs an even rank", .got = std::to_string(pair.rank)});
    if (init.changes_base() && pair.rank > std::min(pair.out, pair.in))
      refuse(layout, pair,
             {.what = "an initialization from the base's weight cannot have a rank above its sides",
              .got = fmt::format("rank {}, weight [{}, {}]", pair.rank, pair.out, pair.in),
              .attempt = "a smaller rank, or the initialization true"});
  }
}

Buffer initial_weights(const AdapterLayout& layout, uint64_t seed) {
  Buffer flat(static_cast<size_t>(layout.num_floats) * sizeof(float));
  for (size_t p = 0; p < layout.pairs.size(); ++p)
    if (layout.pairs[p].of_embedding())
      draw_embedding(layout, p, seed, flat);
    else
      draw_linear(layout, p, seed, flat);
  if (layout.value_head)
    normal_values(seed, number_of(0, Drawn::value_head),
                  {flat.f32() + layout.value_head->weight, static_cast<size_t>(layout.value_head->width)}, 0.02);
  return flat;
}

LoraConfig resumed_config(LoraConfig saved, const LoraInit& init, double alpha) {
  saved.init = init;
  if (!init.changes_base()) return saved;
  saved.subtracts_initial = true;
  saved.rank /= 2;
  saved.alpha = alpha;
  return saved;
}

void begin_with_base(const AdapterLayout& layout, const Pair& pair, ConstTensor weight, uint64_t seed, Buffer& flat) {
  const LoraInit& init = layout.config.init;
  MatrixFactors factors;
  if (init.method == InitMethod::olora) {
    factors = leading_qr(weight, pair.rank);
  } else {
    std::optional<int64_t> iterations = init.iterations;
    if (!iterations && std::min(weight[0], weight[1]) > kExactSide) iterations = kIterations;
    factors = largest_singular_part(weight, pair.rank, iterations, seed);
    const float root = 1 / std::sqrt(pair.scale);
    for (std::vector<float>* values : {&factors.left, &factors.right})
      for (float& value : *values) value *= root;
  }
  float* const to = flat.f32();
  for (const int64_t offset : {pair.a_offset, pair.a0_offset})
    if (offset != kAbsent) transpose(to + offset, pair.rank, factors.right.data(), pair.in, pair.rank, pair.in);
  for (const int64_t offset : {pair.b_offset, pair.b0_offset})
    if (offset != kAbsent) transpose(to + offset, pair.out, factors.left.data(), pair.rank, pair.out, pair.rank);
}

}  // namespace lockstep::lora
