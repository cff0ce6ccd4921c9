#include "kernels/top_logprobs.h"

#include "core/error.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels {
namespace {

void require_entries(size_t got, int64_t wanted, const char* argument) {
  if (static_cast<int64_t>(got) != wanted)
    throw ShapeError({.what = "wrong number of entries",
                      .where = std::string("top_logprobs: ") + argument,
                      .got = std::to_string(got),
                      .wanted = std::to_string(wanted)});
}

}  // namespace

void top_logprobs(const TopLogprobs& top, ConstTensor logits, ConstTensor lse, std::span<const int32_t> targets,
                  float inv_temperature, Stream& stream) {
  const int64_t rows = logits.rank == 2 ? logits.shape[0] : 0, vocab = logits.rank == 2 ? logits.shape[1] : 0;
  const int64_t count = top.logprobs.rank == 2 ? top.logprobs.shape[1] : 0;
  if (count < 1 || count > vocab)
    throw ShapeError({.what = "wrong number of most likely tokens",
                      .where = "top_logprobs",
                      .got = shape_text(top.logprobs) + " of " + shape_text(logits),
                      .wanted = "f32 [R, N] of [R, V], 1 <= N <= V"});
  require_f32(logits, {rows, vocab}, "top_logprobs", "logits");
  require_f32(lse, {rows}, "top_logprobs", "lse");
  require_f32(top.logprobs, {rows, count}, "top_logprobs", "logprobs");
  require_entries(top.tokens.size(), rows * count, "tokens");
  require_entries(top.ranks.size(), targets.empty() ? 0 : rows, "ranks");
  require_entries(targets.size(), targets.empty() ? 0 : rows, "targets");
  (stream.device() == Device::cuda ? cuda::top_logprobs : cpu::top_logprobs)(top, logits, lse, targets, inv_temperature,
                                                                             stream);
}

}  // namespace lockstep::kernels
