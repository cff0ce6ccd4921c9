#include "kernels/sample.h"

#include "core/error.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels {
namespace {

void require_rows(size_t got, int64_t rows, const char* argument) {
  if (static_cast<int64_t>(got) != rows)
    throw ShapeError({.what = "one entry per row of logits",
                      .where = std::string("sample_tokens: ") + argument,
                      .got = std::to_string(got),
                      .wanted = std::to_string(rows)});
}

}  // namespace

void sample_tokens(std::span<int32_t> tokens, Tensor scratch, ConstTensor logits, std::span<const SampleRow> rows,
                   Stream& stream) {
  const int64_t count = logits.shape[0], vocab = logits.rank == 2 ? logits.shape[1] : 0;
  if (vocab < 1)
    throw ShapeError(
        {.what = "wrong shape", .where = "sample_tokens: logits", .got = shape_text(logits), .wanted = "f32 [R, V]"});
  require_f32(logits, {count, vocab}, "sample_tokens", "logits");
  require_rows(tokens.size(), count, "tokens");
  require_rows(rows.size(), count, "rows");
  if (stream.device() == Device::cuda) return cuda::sample_tokens(tokens, logits, rows, stream);
  require_f32(scratch, {count, vocab}, "sample_tokens", "scratch");
  cpu::sample_tokens(tokens, scratch, logits, rows, stream);
}

Tensor sample_scratch(int64_t rows, int64_t vocab, Arena& arena) {
  return arena.device() == Device::cpu ? arena.alloc({rows, vocab}) : Tensor();
}

}  // namespace lockstep::kernels
