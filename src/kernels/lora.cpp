#include "kernels/lora.h"

#include <algorithm>
#include <limits>
#include <string>

#include "core/error.h"
#include "core/transfer.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/output_columns.h"
#include "kernels/kernels.h"
#include "kernels/lora_checks.h"
#include "kernels/matmul.h"

namespace lockstep::kernels {
namespace {

constexpr int64_t kGradientBlock = 256;

// What the CPU does pair by pair: f(pair, its columns of h).
template <class View, class F>
void each_pair(std::span<const LoraPair> pairs, const View& h, const F& f) {
  int64_t begin = 0;
  for (const LoraPair& pair : pairs) {
    f(pair, h.cols(begin, begin + pair.rank()));
    begin += pair.rank();
  }
}

template <class View>
View output_of(const View& y, const LoraPair& pair) {
  return y.cols(pair.out_begin, pair.out_begin + pair.b[1]);
}

}  // namespace

int64_t max_lora_rank(Device device) {
  return device == Device::cpu ? std::numeric_limits<int64_t>::max() : kMaxGpuRank;
}

bool has_lora_tiles(Device device) {
  return device == Device::cuda;
}

bool gains_by_kept_h(Device device) {
  return device == Device::cuda;
}

int64_t total_rank(std::span<const LoraPair> pairs) {
  int64_t rank = 0;
  for (const LoraPair& pair : pairs) rank += pair.rank();
  return rank;
}

void lora_shrink(Tensor h, ConstTensor x, std::span<const LoraPair> pairs, Stream& stream) {
  constexpr const char* kOp = "lora_shrink";
  require_pairs(pairs, kOp, stream);
  require_input(x, pairs, kOp, stream);
  require_h(h, x.shape[0], pairs, kOp, stream);
  if (stream.device() == Device::cuda) return cuda::lora_shrink(h, x, pairs, stream);
  each_pair(pairs, h, [&](const LoraPair& pair, Tensor of_pair) { matmul(of_pair, x, pair.a, 1, false, stream); });
}

void lora_expand(Tensor y, ConstTensor h, std::span<const LoraPair> pairs, Stream& stream) {
  constexpr const char* kOp = "lora_expand";
  require_pairs(pairs, kOp, stream);
  require_h(h, y.shape[0], pairs, kOp, stream);
  require_output(y, pairs, kOp, stream);
  if (stream.device() == Device::cuda)
    return y.dtype == DType::f32 ? cuda::expand_f32(y, h, pairs, stream) : cuda::lora_expand(y, h, pairs, stream);
  each_pair(pairs, h, [&](const LoraPair& pair, ConstTensor of_pair) {
    matmul(output_of(y, pair), of_pair, pair.b, pair.scale, true, stream);
  });
}

void lora_expand_backward(Tensor dh, ConstTensor dy, std::span<const LoraPair> pairs, Stream& stream) {
  constexpr const char* kOp = "lora_expand_backward";
  require_pairs(pairs, kOp, stream);
  require_h(dh, dy.shape[0], pairs, kOp, stream);
  require_output(dy, pairs, kOp, stream);
  if (stream.device() == Device::cuda) return cuda::lora_expand_backward(dh, dy, pairs, stream);
  each_pair(pairs, dh, [&](const LoraPair& pair, Tensor of_pair) {
    matmul_transposed(of_pair, output_of(dy, pair), pair.b, pair.scale, false, stream);
  });
}

void lora_shrink_backward(Tensor dx, ConstTensor dh, std::span<const LoraPair> pairs, Stream& stream) {
  constexpr const char* kOp = "lora_shrink_backward";
  require_pairs(pairs, kOp, stream);
  require_input(dx, pairs, kOp, stream);
  require_h(dh, dx.shape[0], pairs, kOp, stream);
  if (stream.device() == Device::cuda) return cuda::lora_shrink_backward(dx, dh, pairs, stream);
  each_pair(pairs, dh, [&](const LoraPair& pair, ConstTensor of_pair) {
    matmul_transposed(dx, of_pair, pair.a, 1, true, stream);
  });
}

GradientPlan plan_gradients(std::span<const GradientRows> rows, int64_t partial_floats, Arena& arena, Stream& stream) {
  GradientPlan plan(rows);
  if (stream.device() == Device::cpu) return plan;
  std::vector<GradientBlock> blocks;
  std::vector<GradientLane> lanes;
  for (const GradientRows& r : rows) {
    if (r.rows == 0) continue;
    if (lanes.empty() || lanes.back().gradient != r.gradient)
      lanes.push_back({.gradient = r.gradient, .first_block = static_cast<int32_t>(blocks.size())});
    for (int64_t begin = 0; begin < r.rows; begin += kGradientBlock) {
      blocks.push_back({.row_begin = static_cast<int32_t>(r.row_begin + begin),
                        .rows = static_cast<int32_t>(std::min(kGradientBlock, r.rows - begin))});
      ++lanes.back().num_blocks;
    }
  }
  plan.num_blocks = static_cast<int64_t>(blocks.size());
  plan.num_lanes = static_cast<int64_t>(lanes.size());
  if (blocks.empty()) return plan;
  plan.blocks = upload(std::span<const GradientBlock>(blocks), arena, stream).data();
  plan.lanes = upload(std::span<const GradientLane>(lanes), arena, stream).data();
  plan.partial = arena.alloc({plan.num_blocks * partial_floats}).f32();
  return plan;
}

int64_t gradient_blocks(int64_t rows, Device device) {
  return device == Device::cpu ? 0 : (rows + kGradientBlock - 1) / kGradientBlock;
}

int64_t lora_gradient_floats(std::span<const LoraPair> pairs) {
  int64_t floats = 0;
  for (const LoraPair& pair : pairs) floats += pair.a.elements() + pair.b.elements();
  return floats;
}

namespace {

void require_gradient_call(const ConstTensor& x, const ConstTensor& h, const ConstTensor& dh, const ConstTensor& dy,
                           std::span<const LoraPair> pairs, const char* op, const Stream& stream) {
  require_pairs(pairs, op, stream);
  require_input(x, pairs, op, stream);
  require_h(h, x.shape[0], pairs, op, stream);
  require_h(dh, x.shape[0], pairs, op, stream);
  require_output(dy, pairs, op, stream);
}

}  // namespace

void lora_backward(const GradientPlan& plan, Tensor dh, ConstTensor x, ConstTensor h, ConstTensor dy,
                   std::span<const LoraPair> pairs, Stream& stream) {
  require_gradient_call(x, h, dh, dy, pairs, "lora_backward", stream);
  if (stream.device() == Device::cuda) return cuda::lora_backward(plan, dh, x, h, dy, pairs, stream);
  lora_expand_backward(dh, dy, pairs, stream);
  lora_gradient(plan, x, h, dh, dy, pairs, stream);
}

void lora_gradient(const GradientPlan& plan, ConstTensor x, ConstTensor h, ConstTensor dh, ConstTensor dy,
                   std::span<const LoraPair> pairs, Stream& stream) {
  require_gradient_call(x, h, dh, dy, pairs, "lora_gradient", stream);
  if (stream.device() == Device::cuda) return cuda::lora_gradient(plan, x, h, dh, dy, pairs, stream);
  const std::span<const GradientRows> all = plan.rows;
  for (size_t i = 0; i < all.size();) {
    // Neighbours of one lane are one stretch of its chain, and one pass over its gradient.
    const int64_t begin = all[i].row_begin;
    int64_t end = begin + all[i].rows;
    float* const gradient = all[i].gradient;
    for (++i; i < all.size() && all[i].gradient == gradient && all[i].row_begin == end; ++i) end += all[i].rows;
    int64_t column = 0;
    for (const LoraPair& pair : pairs) {
      const int64_t rank = pair.rank();
      const Tensor d_a(gradient + pair.a_offset, DType::f32, {pair.a[0], rank});
      const Tensor d_b(gradient + pair.b_offset, DType::f32, {rank, pair.b[1]});
      outer_accumulate(d_b, h.cols(column, column + rank).rows(begin, end), output_of(dy, pair).rows(begin, end),
                       pair.scale, stream);
      outer_accumulate(d_a, x.rows(begin, end), dh.cols(column, column + rank).rows(begin, end), 1, stream);
      column += rank;
    }
  }
}

void lora_shrink_tiles(Tensor h, ConstTensor x, const LoraTiles& tiles, int64_t site, Stream& stream) {
  require_tiles(tiles, site, h, "lora_shrink_tiles", stream);
  cuda::lora_shrink_tiles(h, x, tiles, site, stream);
}

void lora_expand_tiles(Tensor y, ConstTensor h, const LoraTiles& tiles, int64_t site, Stream& stream) {
  require_tiles(tiles, site, h, "lora_expand_tiles", stream);
  cuda::lora_expand_tiles(y, h, tiles, site, stream);
}

void add_delta(Tensor y, const LoraDelta& delta, Stream& stream) {
  if (delta.empty()) return;
  require_delta(y, delta, "add_delta", stream);
  if (delta.pairs.empty()) return lora_expand_tiles(y, delta.h, delta.tiles, delta.site, stream);
  lora_expand(y, delta.h, delta.pairs, stream);
}

}  // namespace lockstep::kernels
