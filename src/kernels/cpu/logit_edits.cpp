#include "kernels/cpu/row_ops.h"

namespace lockstep::kernels::cpu {

void edit_logits(Tensor logits, std::span<const LogitEdit> edits) {
  for (const LogitEdit& edit : edits) {
    float& logit = logits.row(edit.row)[edit.token];
    const float z = logit + edit.add;
    logit = (z > 0 ? z / edit.divide : z * edit.divide) - edit.subtract;
  }
}

}  // namespace lockstep::kernels::cpu
