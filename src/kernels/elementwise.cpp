#include "kernels/elementwise.h"

#include "core/error.h"
#include "kernels/cpu/row_ops.h"

namespace lockstep::kernels {
namespace {

void require_same_matrix(const ConstTensor& y, const ConstTensor& x, const char* op) {
  if (x.rank != 2)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = std::string(op) + ": x",
                      .got = shape_text(x),
                      .wanted = "f32 [T, K]"});
  require_f32(x, {x.shape[0], x.shape[1]}, op, "x");
  require_f32(y, {x.shape[0], x.shape[1]}, op, "y");
}

}  // namespace

void add(Tensor y, ConstTensor x, Stream& stream) {
  require_same_matrix(y, x, "add");
  cpu::add(y, x, stream);
}

void dropout(Tensor y, ConstTensor x, float p, const DropoutCounter& counter, bool accumulate, Stream& stream) {
  require_same_matrix(y, x, "dropout");
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
  cpu::dropout(y, x, p, counter, accumulate, stream);
}

}  // namespace lockstep::kernels
