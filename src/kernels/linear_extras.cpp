#include "kernels/linear_extras.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/transfer.h"
#include "kernels/elementwise.h"
#include "kernels/lora_checks.h"
#include "kernels/lora_segments.h"
#include "kernels/output_columns.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

namespace lockstep::kernels {
namespace {

Tensor rows_of(const Tensor& x, int64_t begin, int64_t end) {
  return x.empty() ? Tensor() : x.rows(begin, end);
}
ConstTensor rows_of(const ConstTensor& x, int64_t begin, int64_t end) {
  return x.empty() ? ConstTensor() : x.rows(begin, end);
}

LoraDropout rows_of(LoraDropout dropout, int64_t begin, int64_t end) {
  if (dropout.p == 0) return dropout;
  dropout.sample = dropout.sample.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  dropout.position = dropout.position.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  return dropout;
}

// Rows [begin, end) of the call with `weight`. `segments` are those in them, without extras; their rows become the
// part's.
LinearCall part_of(const LinearCall& call, int64_t begin, int64_t end, const PackedWeight& weight,
                   std::vector<LoraSegment>& segments) {
  for (LoraSegment& segment : segments) segment.row_begin -= begin;
  return {.y = rows_of(call.y, begin, end),
          .input = {.x = rows_of(call.input.x, begin, end),
                    .norm_weight = call.input.norm_weight,
                    .norm_eps = call.input.norm_eps,
                    .norm = rows_of(call.input.norm, begin, end),
                    .rstd = rows_of(call.input.rstd, begin, end)},
          .weight = weight,
          .bias = call.bias,
          .residual = rows_of(call.residual, begin, end),
          .adapters = {.segments = segments,
                       .dropout = rows_of(call.adapters.dropout, begin, end),
                       .arena = call.adapters.arena},
          .act = rows_of(call.act, begin, end),
          .keep_y = call.keep_y};
}

// y += the subtracted pairs' part of x.
void add_subtracted(const Tensor& y, const ConstTensor& x, const LoraSegment& segment, Arena& arena, Stream& stream) {
  const LoraSegment all{.row_begin = 0, .rows = y[0], .pairs = segment.subtracted};
  add_segments(y, x, {.segments = {&all, 1}, .arena = &arena}, stream);
}

void run_segment(const LinearCall& call, const LoraSegment& segment, Stream& stream) {
  std::vector<LoraSegment> pairs;
  if (!segment.pairs.empty())
    pairs.push_back({.row_begin = segment.row_begin, .rows = segment.rows, .pairs = segment.pairs});
  const PackedWeight& weight = segment.weight ? *segment.weight : call.weight;
  LinearCall part = part_of(call, segment.row_begin, segment.row_begin + segment.rows, weight, pairs);
  if (!segment.bias.empty()) part.bias = segment.bias;
  if (segment.factor.empty() && segment.subtracted.empty()) return linear(part, stream);
  const ConstTensor bias = part.bias, residual = part.residual;
  const Tensor act = part.act;
  // The norm is made here, so that what follows can read it.
  if (!part.input.norm_weight.empty()) {
    rmsnorm_forward(part.input.norm, part.input.rstd, part.input.x, part.input.norm_weight, part.input.norm_eps,
                    stream);
    part.input = {.x = part.input.norm};
  }
  part.bias = {}, part.residual = {}, part.act = {};
  linear(part, stream);
  if (!segment.subtracted.empty()) add_subtracted(part.y, part.input.x, segment, *call.adapters.arena, stream);
  finish_outputs(part.y, segment.factor, bias, residual, stream);
  if (!act.empty()) swiglu_forward(act, part.y, stream);
}

bool trains_magnitude(const LoraSegment& segment) {
  return std::ranges::any_of(segment.trained, [](const TrainedOutputs& outputs) { return outputs.magnitude >= 0; });
}

// x W^T and the adapter's part of the segment's rows, in a matrix of all rows of the call.
ConstTensor unscaled_outputs(const LinearBackwardCall& call, const LoraSegment& segment, Stream& stream) {
  const Tensor z = call.adapters.arena->alloc({call.dy[0], call.dy[1]}, call.dy.dtype);
  const LoraSegment pairs{.row_begin = segment.row_begin, .rows = segment.rows, .pairs = segment.pairs};
  std::vector<LoraSegment> segments;
  if (!pairs.pairs.empty()) segments.push_back(pairs);
  const LinearCall all{.y = z, .input = {.x = call.x}, .weight = call.weight, .adapters = call.adapters};
  const PackedWeight& weight = segment.weight ? *segment.weight : call.weight;
  const int64_t begin = segment.row_begin, end = begin + segment.rows;
  linear(part_of(all, begin, end, weight, segments), stream);
  if (!segment.subtracted.empty())
    add_subtracted(z.rows(begin, end), call.x.rows(begin, end), segment, *call.adapters.arena, stream);
  return z;
}

ColumnValues magnitude_values(const LinearBackwardCall& call, const LoraSegment& segment, Stream& stream) {
  const bool is_exact = stream.device() == Device::cpu || call.residual.empty();
  if (!call.y.empty() && is_exact && !segment.inverse_magnitude.empty())
    return {.y = call.y,
            .residual = call.residual,
            .bias = segment.bias.empty() ? call.bias : segment.bias,
            .factor = segment.inverse_magnitude};
  return {.y = unscaled_outputs(call, segment, stream), .factor = segment.inverse_norm};
}

// dx += the subtracted pairs' part of dz.
void add_subtracted_backward(const Tensor& dx, const ConstTensor& dz, const LinearAdapters& adapters, Stream& stream) {
  for (const LoraSegment& segment : adapters.segments) {
    if (segment.subtracted.empty()) continue;
    const Arena::Scope scope(*adapters.arena);
    const int64_t begin = segment.row_begin, end = begin + segment.rows;
    const Tensor dh = adapters.arena->alloc({segment.rows, total_rank(segment.subtracted)}, dz.dtype);
    lora_expand_backward(dh, dz.rows(begin, end), segment.subtracted, stream);
    lora_shrink_backward(dx.rows(begin, end), dh, segment.subtracted, stream);
  }
}

// The gradients of the segment's magnitude, bias and weight.   dz: dy times the factor
void add_own_gradients(const LinearBackwardCall& call, const LoraSegment& segment, const ConstTensor& dz,
                       Stream& stream) {
  const Arena::Scope scope(*call.adapters.arena);
  ColumnValues values;
  if (trains_magnitude(segment)) values = magnitude_values(call, segment, stream);
  for (const TrainedOutputs& outputs : segment.trained) {
    const auto to = [&](int64_t offset) {
      return ColumnGradient{.begin = outputs.begin, .count = outputs.count, .offset = offset};
    };
    if (outputs.magnitude >= 0) column_gradient(*segment.gradients, call.dy, values, to(outputs.magnitude), stream);
    if (outputs.bias >= 0) column_gradient(*segment.gradients, call.dy, {}, to(outputs.bias), stream);
  }
  if (segment.weight_gradient < 0) return;
  weight_gradient(*segment.gradients, dz, call.x, segment.weight_gradient, 1, stream);
}

}  // namespace

bool has_extras(const LinearAdapters& adapters) {
  return std::ranges::any_of(adapters.segments, [](const LoraSegment& segment) { return segment.has_extras(); });
}

void require_extras(const LinearAdapters& adapters, const PackedWeight& weight, const char* op, const Stream& stream) {
  for (const LoraSegment& segment : adapters.segments) {
    if (!segment.has_extras()) continue;
    require_pairs(segment.subtracted, op, stream);
    for (const LoraPair& pair : segment.subtracted)
      if (pair.in() != weight.depth || pair.out_begin + pair.b[1] > weight.rows)
        throw ShapeError({.what = "subtracted factors do not fit the layer",
                          .where = op,
                          .got = shape_text(pair.a) + " and " + shape_text(pair.b)});
    if (!segment.factor.empty()) require_f32(segment.factor, {weight.rows}, op, "segment factor");
    if (trains_magnitude(segment)) require_f32(segment.inverse_norm, {weight.rows}, op, "segment inverse_norm");
    if (!segment.bias.empty()) require_f32(segment.bias, {weight.rows}, op, "segment bias");
    if (segment.weight && (segment.weight->rows != weight.rows || segment.weight->depth != weight.depth))
      throw ShapeError({.what = "an adapter's weight has another shape than the layer's",
                        .where = op,
                        .got = std::to_string(segment.weight->rows) + " x " + std::to_string(segment.weight->depth),
                        .wanted = std::to_string(weight.rows) + " x " + std::to_string(weight.depth)});
  }
}

void linear_with_extras(const LinearCall& call, Stream& stream) {
  // Tiles are of many short runs of rows in one launch: all of these first, and then the rows with extras once more.
  const bool has_tiles = call.adapters.tiles.num_tiles > 0;
  std::vector<LoraSegment> plain;
  if (has_tiles) {
    std::ranges::copy_if(call.adapters.segments, std::back_inserter(plain),
                         [](const LoraSegment& segment) { return !segment.has_extras(); });
    LinearCall rest = call;
    rest.adapters.segments = plain;
    linear(rest, stream);
  }
  plain.clear();
  int64_t row = 0;
  const auto run_plain = [&](int64_t end) {
    if (end > row && !has_tiles) linear(part_of(call, row, end, call.weight, plain), stream);
    plain.clear();
  };
  for (const LoraSegment& segment : call.adapters.segments) {
    if (!segment.has_extras()) {
      plain.push_back(segment);
      continue;
    }
    run_plain(segment.row_begin);
    run_segment(call, segment, stream);
    row = segment.row_begin + segment.rows;
  }
  run_plain(call.y[0]);
}

void linear_backward_with_extras(const LinearBackwardCall& call, Stream& stream) {
  Arena& arena = *call.adapters.arena;
  const Arena::Scope scope(arena);
  // dz: the gradient of what factors multiply. Rows without a factor keep theirs.
  ConstTensor dz = call.dy;
  if (std::ranges::any_of(call.adapters.segments, [](const LoraSegment& s) { return !s.factor.empty(); })) {
    const Tensor scaled = arena.alloc({call.dy[0], call.dy[1]}, call.dy.dtype);
    if (call.adapters.segments.front().rows < scaled[0]) {
      zero(scaled.data, static_cast<size_t>(scaled.elements() * dtype_bytes(scaled.dtype)), stream);
      add(scaled, call.dy, stream);
    }
    for (const LoraSegment& segment : call.adapters.segments) {
      const int64_t begin = segment.row_begin, end = begin + segment.rows;
      if (!segment.factor.empty())
        scale_columns(scaled.rows(begin, end), call.dy.rows(begin, end), segment.factor, stream);
    }
    dz = scaled;
  }
  int64_t row = 0;
  const auto base = [&](int64_t end, const PackedWeight& weight) {
    if (end > row && !call.dx.empty())
      linear_backward(
          {.dx = call.dx.rows(row, end), .dy = dz.rows(row, end), .weight = weight, .accumulate = call.accumulate},
          stream);
    row = end;
  };
  for (const LoraSegment& segment : call.adapters.segments) {
    if (!segment.has_extras()) continue;
    base(segment.row_begin, call.weight);
    base(segment.row_begin + segment.rows, segment.weight ? *segment.weight : call.weight);
    if (segment.gradients) add_own_gradients(call, segment, dz, stream);
  }
  base(dz[0], call.weight);
  add_segments_backward(call.dx, dz, call.x, call.adapters, stream);
  if (!call.dx.empty()) add_subtracted_backward(call.dx, dz, call.adapters, stream);
}

}  // namespace lockstep::kernels
