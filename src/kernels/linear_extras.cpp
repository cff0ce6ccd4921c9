#include "kernels/linear_extras.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/rows.h"
#include "kernels/lora_segments.h"
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
                    .norm = rows_of(call.input.norm, begin, end)},
          .weight = weight,
          .bias = call.bias,
          .residual = rows_of(call.residual, begin, end),
          .adapters = {.segments = segments,
                       .dropout = rows_of(call.adapters.dropout, begin, end),
                       .arena = call.adapters.arena},
          .act = rows_of(call.act, begin, end),
          .keep_y = call.keep_y};
}

// y = y * magnitude + bias + the segment's bias + residual, one rounding each, in this order.
void finish_outputs(const Tensor& y, const LoraSegment& segment, const ConstTensor& bias, const ConstTensor& residual,
                    Stream& stream) {
  const float* const factor = segment.magnitude.empty() ? nullptr : segment.magnitude.f32();
  const float* const own = segment.bias.empty() ? nullptr : segment.bias.f32();
  cpu::split_rows(stream, y[0], y[1], [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const row = y.row(r);
      if (factor)
        for (int64_t n = 0; n < y[1]; ++n) row[n] *= factor[n];
      if (!bias.empty())
        for (int64_t n = 0; n < y[1]; ++n) row[n] += bias.f32()[n];
      if (own)
        for (int64_t n = 0; n < y[1]; ++n) row[n] += own[n];
      if (!residual.empty())
        for (int64_t n = 0; n < y[1]; ++n) row[n] += residual.row(r)[n];
    }
  });
}

void run_segment(const LinearCall& call, const LoraSegment& segment, Stream& stream) {
  std::vector<LoraSegment> pairs;
  if (!segment.pairs.empty())
    pairs.push_back({.row_begin = segment.row_begin, .rows = segment.rows, .pairs = segment.pairs});
  const PackedWeight& weight = segment.weight ? *segment.weight : call.weight;
  LinearCall part = part_of(call, segment.row_begin, segment.row_begin + segment.rows, weight, pairs);
  if (segment.magnitude.empty() && segment.bias.empty()) return linear(part, stream);
  const ConstTensor bias = part.bias, residual = part.residual;
  const Tensor act = part.act;
  part.bias = {}, part.residual = {}, part.act = {};
  linear(part, stream);
  finish_outputs(part.y, segment, bias, residual, stream);
  if (!act.empty()) swiglu_forward(act, part.y, stream);
}

}  // namespace

bool has_extras(const LinearAdapters& adapters) {
  return std::ranges::any_of(adapters.segments, [](const LoraSegment& segment) { return segment.has_extras(); });
}

void require_extras(const LinearAdapters& adapters, const PackedWeight& weight, const char* op, const Stream& stream) {
  for (const LoraSegment& segment : adapters.segments) {
    if (!segment.has_extras()) continue;
    if (stream.device() == Device::cuda)
      throw ConfigError({.what = "a GPU runs adapters of LoRA factors alone",
                         .where = op,
                         .got = !segment.magnitude.empty() ? "magnitude"
                                : !segment.bias.empty()    ? "bias"
                                                           : "weight"});
    if (!segment.magnitude.empty()) require_f32(segment.magnitude, {weight.rows}, op, "magnitude");
    if (!segment.bias.empty()) require_f32(segment.bias, {weight.rows}, op, "segment bias");
    if (segment.weight && (segment.weight->rows != weight.rows || segment.weight->depth != weight.depth))
      throw ShapeError({.what = "an adapter's weight has another shape than the layer's",
                        .where = op,
                        .got = std::to_string(segment.weight->rows) + " x " + std::to_string(segment.weight->depth),
                        .wanted = std::to_string(weight.rows) + " x " + std::to_string(weight.depth)});
  }
}

void linear_with_extras(const LinearCall& call, Stream& stream) {
  int64_t row = 0;
  std::vector<LoraSegment> plain;
  const auto run_plain = [&](int64_t end) {
    if (end > row) linear(part_of(call, row, end, call.weight, plain), stream);
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
  // dz: the gradient of what magnitudes multiply.
  const Tensor dz = arena.alloc({call.dy[0], call.dy[1]});
  for (int64_t r = 0; r < dz[0]; ++r) std::copy_n(call.dy.row(r), dz[1], dz.row(r));
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
    const int64_t end = segment.row_begin + segment.rows;
    base(segment.row_begin, call.weight);
    for (int64_t r = row; r < end && !segment.magnitude.empty(); ++r)
      for (int64_t n = 0; n < dz[1]; ++n) dz.row(r)[n] *= segment.magnitude.f32()[n];
    base(end, segment.weight ? *segment.weight : call.weight);
  }
  base(dz[0], call.weight);
  add_segments_backward(call.dx, dz, call.x, call.adapters, stream);
}

}  // namespace lockstep::kernels
