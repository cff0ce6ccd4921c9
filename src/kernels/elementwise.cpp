#include "kernels/elementwise.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cuda/ops.h"
#include "kernels/kernels.h"

namespace lockstep::kernels {
namespace {

void require_same_matrix(const ConstTensor& y, const ConstTensor& x, DType dtype, const char* op) {
  if (x.rank != 2)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = std::string(op) + ": x",
                      .got = shape_text(x),
                      .wanted = "[T, K]"});
  require_tensor(x, dtype, {x.shape[0], x.shape[1]}, op, "x");
  require_tensor(y, dtype, {x.shape[0], x.shape[1]}, op, "y");
}

void require_rows(const ConstTensor& few, const ConstTensor& many, std::span<const int32_t> rows, const char* op) {
  if (few.rank == many.rank && few.dtype == many.dtype && (few.rank == 1 || few.rank == 2) &&
      few.row_elements() == many.row_elements() && few.shape[0] == static_cast<int64_t>(rows.size()))
    return;
  throw ShapeError(
      {.what = "op arguments do not fit together",
       .where = op,
       .got = shape_text(few) + " and " + shape_text(many) + " for " + std::to_string(rows.size()) + " rows",
       .wanted = "one type, one width, one row per index"});
}

}  // namespace

void add(Tensor y, ConstTensor x, Stream& stream) {
  const bool gpu = stream.device() == Device::cuda;
  require_same_matrix(y, x, gpu && x.dtype == DType::bf16 ? DType::bf16 : DType::f32, "add");
  if (gpu) return cuda::add(y, x, stream);
  cpu::add(y, x, stream);
}

void gather_rows(Tensor to, ConstTensor from, std::span<const int32_t> rows, Stream& stream) {
  require_rows(to, from, rows, "gather_rows");
  if (stream.device() == Device::cuda) return cuda::gather_rows(to, from, rows, stream);
  cpu::gather_rows(to, from, rows, stream);
}

void scatter_rows(Tensor to, ConstTensor from, std::span<const int32_t> rows, Stream& stream) {
  require_rows(from, to, rows, "scatter_rows");
  if (stream.device() == Device::cuda) return cuda::scatter_rows(to, from, rows, stream);
  cpu::scatter_rows(to, from, rows, stream);
}

bool all_finite(ConstTensor x, Stream& stream) {
  const bool gpu = stream.device() == Device::cuda;
  if (x.rank != 1)
    throw ShapeError(
        {.what = "op argument has the wrong shape", .where = "all_finite: x", .got = shape_text(x), .wanted = "[N]"});
  require_tensor(x, gpu && x.dtype == DType::bf16 ? DType::bf16 : DType::f32, {x.shape[0]}, "all_finite", "x");
  if (gpu) return cuda::all_finite(x, stream);
  const auto* const values = static_cast<const float*>(x.data);
  return std::all_of(values, values + x.shape[0], [](float value) { return std::isfinite(value); });
}

void dropout(Tensor y, ConstTensor x, float p, const DropoutCounter& counter, bool accumulate, Stream& stream) {
  require_same_matrix(y, x, activation_dtype(stream.device()), "dropout");
  const auto rows = static_cast<size_t>(x.shape[0]);
  if (counter.sample.size() != rows || counter.position.size() != rows)
    throw ShapeError({.what = "one sample and one position per row",
                      .where = "dropout: counter",
                      .got = std::to_string(counter.sample.size()) + " and " + std::to_string(counter.position.size()),
                      .wanted = std::to_string(rows)});
  if (x.shape[1] / 4 >= 65536 || counter.module >= 65536)
    throw ShapeError({.what = "the dropout counter has 16 bits for a module and 16 for a group of columns",
                      .where = "dropout",
                      .got = shape_text(x) + ", module " + std::to_string(counter.module),
                      .wanted = "fewer than 262144 columns and 65536 modules"});
  if (!(p >= 0.0f && p < 1.0f))
    throw ConfigError({.what = "impossible dropout probability",
                       .where = "dropout: p",
                       .got = std::to_string(p),
                       .wanted = "at least 0 and below 1"});
  if (stream.device() == Device::cuda) return cuda::dropout(y, x, p, counter, accumulate, stream);
  cpu::dropout(y, x, p, counter, accumulate, stream);
}

}  // namespace lockstep::kernels
