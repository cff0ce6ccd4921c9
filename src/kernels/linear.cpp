#include "kernels/linear.h"

#include <algorithm>
#include <optional>
#include <string>

#include "core/error.h"
#include "kernels/cpu/matrix_ops.h"
#include "kernels/cuda/ops.h"
#include "kernels/linear_checks.h"
#include "kernels/linear_extras.h"
#include "kernels/lora_checks.h"
#include "kernels/lora_segments.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

namespace lockstep::kernels {
namespace {

// Returns T.
int64_t require_rows(const ConstTensor& rows, const char* op, const char* argument) {
  if (rows.rank != 2)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = std::string(op) + ": " + argument,
                      .got = shape_text(rows),
                      .wanted = "a matrix"});
  return rows[0];
}

void require_segments(std::span<const LoraSegment> segments, int64_t rows, const char* op) {
  int64_t row = 0;
  for (const LoraSegment& segment : segments) {
    if (segment.row_begin < row || segment.rows < 0 || segment.row_begin + segment.rows > rows)
      throw ShapeError({.what = "an adapter's rows are not rows of the call, in order",
                        .where = op,
                        .got = std::to_string(segment.rows) + " rows from " + std::to_string(segment.row_begin),
                        .wanted = "rows from " + std::to_string(row) + " to " + std::to_string(rows)});
    row = segment.row_begin + segment.rows;
  }
}

// Of a layer that reads `x` and gives `y`: forward, or back from dy to what read x.
void require_adapters(const LinearAdapters& adapters, const ConstTensor& x, const ConstTensor& y, const char* op,
                      const Stream& stream) {
  const bool on_cpu = stream.device() == Device::cpu;
  if (on_cpu && (adapters.tiles.num_tiles > 0 || !adapters.h.empty()))
    throw DeviceError({.what = "tiles of adapter rows, and x A that is kept, are a GPU's", .where = op});
  if (adapters.empty()) return;
  if (adapters.arena == nullptr) throw ShapeError({.what = "adapters need an arena", .where = op});
  require_segments(adapters.segments, x[0], op);
  for (const LoraSegment& segment : adapters.segments) {
    require_pairs(segment.pairs, op, stream);
    require_input(x, segment.pairs, op, stream);
    require_output(y, segment.pairs, op, stream);
  }
  if (adapters.h.empty()) return;
  if (!is_one_adapter(adapters, x[0]))
    throw ShapeError({.what = "x A is kept where one adapter has all rows, without dropout", .where = op});
  require_h(adapters.h, x[0], adapters.segments[0].pairs, op, stream);
}

void require_call(const LinearCall& call, const char* op, const Stream& stream) {
  const PackedWeight& weight = call.weight;
  const ConstTensor& x = call.input.x;
  const int64_t rows = require_rows(x, op, "x");
  const DType dtype = activation_dtype(stream.device());
  require_tensor(x, dtype, {rows, weight.depth}, op, "x");
  require_tensor(call.y, call.y.dtype == DType::f32 ? DType::f32 : dtype, {rows, weight.rows}, op, "y");
  if (!call.residual.empty()) require_tensor(call.residual, call.y.dtype, {rows, weight.rows}, op, "residual");
  if (!call.bias.empty()) require_f32(call.bias, {weight.rows}, op, "bias");
  if (!call.input.norm_weight.empty()) {
    require_f32(call.input.norm_weight, {weight.depth}, op, "norm_weight");
    require_tensor(call.input.norm, dtype, {rows, weight.depth}, op, "norm");
    if (!call.input.rstd.empty()) require_f32(call.input.rstd, {rows}, op, "rstd");
  }
  if (!call.act.empty()) {
    require_tensor(call.act, dtype, {rows, weight.rows / 2}, op, "act");
    if (!call.residual.empty() || weight.rows % 2 != 0)
      throw ShapeError({.what = "an activation is of gates and as many ups, without residual", .where = op});
  }
  require_adapters(call.adapters, x, call.y, op, stream);
  require_extras(call.adapters, weight, op, stream);
}

void require_call(const LinearBackwardCall& call, const char* op, const Stream& stream) {
  const int64_t rows = require_rows(call.dy, op, "dy");
  const DType dtype = activation_dtype(stream.device());
  require_tensor(call.dy, dtype, {rows, call.weight.rows}, op, "dy");
  if (!call.dx.empty()) require_tensor(call.dx, dtype, {rows, call.weight.depth}, op, "dx");
  if (call.adapters.empty()) return;
  require_tensor(call.x, dtype, {rows, call.weight.depth}, op, "x");
  require_adapters(call.adapters, call.x, call.dy, op, stream);
  require_extras(call.adapters, call.weight, op, stream);
  if (!call.y.empty()) require_tensor(call.y, dtype, {rows, call.weight.rows}, op, "y");
  if (!call.residual.empty()) require_tensor(call.residual, dtype, {rows, call.weight.rows}, op, "residual");
  if (!call.bias.empty()) require_f32(call.bias, {call.weight.rows}, op, "bias");
  const auto lacks_gradients = [](const LoraSegment& s) {
    return (!s.pairs.empty() || !s.trained.empty() || s.weight_gradient >= 0) && s.gradients == nullptr;
  };
  if (call.adapters.tiles.num_tiles > 0 || std::ranges::any_of(call.adapters.segments, lacks_gradients))
    throw ShapeError({.what = "backward needs the gradients of every row's adapter", .where = op});
}

// ---- on the CPU ----

void linear_on_cpu(const LinearCall& call, Stream& stream) {
  ConstTensor x = call.input.x;
  if (!call.input.norm_weight.empty()) {
    rmsnorm_forward(call.input.norm, call.input.rstd, x, call.input.norm_weight, call.input.norm_eps, stream);
    x = call.input.norm;
  }
  const LinearAdapters& adapters = call.adapters;
  cpu::LinearParts parts{.bias = call.bias, .residual = call.residual};
  if (adapters.empty() || adapters.dropout.p != 0) {
    cpu::linear_forward(call.y, x, call.weight, parts, stream);
    return add_segments(call.y, x, adapters, stream);
  }
  const Arena::Scope scope(*adapters.arena);
  int64_t rank = 0;
  for (const LoraSegment& segment : adapters.segments) rank = std::max(rank, total_rank(segment.pairs));
  parts.segments = adapters.segments;
  parts.h = adapters.arena->alloc({x[0], rank});
  cpu::linear_forward(call.y, x, call.weight, parts, stream);
}

void linear_backward_on_cpu(const LinearBackwardCall& call, Stream& stream) {
  if (!call.dx.empty()) cpu::linear_backward_input(call.dx, call.dy, call.weight, call.accumulate, stream);
  add_segments_backward(call.dx, call.dy, call.x, call.adapters, stream);
}

}  // namespace

void linear(const LinearCall& call, Stream& stream) {
  require_call(call, "linear", stream);
  if (has_extras(call.adapters)) return linear_with_extras(call, stream);
  if (stream.device() == Device::cuda) return cuda::linear(call, stream);
  linear_on_cpu(call, stream);
  if (!call.act.empty()) swiglu_forward(call.act, call.y, stream);
}

void require_unfinished(const LinearCall& call, const char* op, const Stream& stream) {
  require_call(call, op, stream);
  if (!call.act.empty()) throw ShapeError({.what = "an unfinished result has no activation", .where = op});
}

UnfinishedLinear begin_linear(const LinearCall& call, Stream& stream) {
  require_unfinished(call, "begin_linear", stream);
  if (has_extras(call.adapters)) {
    linear_with_extras(call, stream);
    return UnfinishedLinear(call.y);
  }
  if (stream.device() == Device::cuda) return cuda::begin_linear(call, stream);
  linear_on_cpu(call, stream);
  return UnfinishedLinear(call.y);
}

UnfinishedLinear begin_linear_backward(const LinearBackwardCall& call, Stream& stream) {
  require_call(call, "linear_backward", stream);
  if (has_extras(call.adapters)) {
    linear_backward_with_extras(call, stream);
    return UnfinishedLinear(call.dx);
  }
  if (stream.device() == Device::cuda) return cuda::begin_linear_backward(call, stream);
  linear_backward_on_cpu(call, stream);
  return UnfinishedLinear(call.dx);
}

void linear_backward(const LinearBackwardCall& call, Stream& stream) {
  std::optional<Arena::Scope> scope;
  if (call.adapters.arena) scope.emplace(*call.adapters.arena);
  finish(begin_linear_backward(call, stream), stream);
}

}  // namespace lockstep::kernels
