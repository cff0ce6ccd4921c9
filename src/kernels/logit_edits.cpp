#include "kernels/logit_edits.h"

#include "core/error.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels {

void edit_logits(Tensor logits, std::span<const LogitEdit> edits, Stream& stream) {
  if (logits.rank != 2)
    throw ShapeError(
        {.what = "wrong shape", .where = "edit_logits: logits", .got = shape_text(logits), .wanted = "f32 [R, V]"});
  require_f32(logits, {logits.shape[0], logits.shape[1]}, "edit_logits", "logits");
  if (edits.empty()) return;
  if (stream.device() == Device::cuda) return cuda::edit_logits(logits, edits, stream);
  for (const LogitEdit& edit : edits)
    if (edit.row < 0 || edit.row >= logits.shape[0] || edit.token < 0 || edit.token >= logits.shape[1])
      throw ShapeError({.what = "an edit lies outside the logits",
                        .where = "edit_logits",
                        .got = "row " + std::to_string(edit.row) + ", token " + std::to_string(edit.token),
                        .wanted = shape_text(logits)});
  cpu::edit_logits(logits, edits);
}

}  // namespace lockstep::kernels
