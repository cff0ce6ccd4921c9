#include "model/head.h"

#include <cstring>

#include "core/error.h"
#include "kernels/linear.h"
#include "kernels/rmsnorm.h"

namespace lockstep::model {

TargetRows target_rows(std::span<const int32_t> targets, int64_t vocab_size) {
  TargetRows result;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] < -1 || targets[i] >= vocab_size)
      throw DataError({.what = "a target lies outside the vocabulary",
                       .where = "row " + std::to_string(i) + " of the batch",
                       .got = std::to_string(targets[i]),
                       .wanted = "0 to " + std::to_string(vocab_size - 1) + ", or -1 for none"});
    if (targets[i] < 0) continue;
    result.rows.push_back(static_cast<int64_t>(i));
    result.targets.push_back(targets[i]);
  }
  return result;
}

void gather_rows(Tensor to, ConstTensor from, std::span<const int64_t> rows) {
  const size_t bytes = static_cast<size_t>(from.row_elements()) * sizeof(float);
  for (size_t i = 0; i < rows.size(); ++i) std::memcpy(to.row(static_cast<int64_t>(i)), from.row(rows[i]), bytes);
}

void scatter_rows(Tensor to, ConstTensor from, std::span<const int64_t> rows) {
  const size_t bytes = static_cast<size_t>(from.row_elements()) * sizeof(float);
  for (size_t i = 0; i < rows.size(); ++i) std::memcpy(to.row(rows[i]), from.row(static_cast<int64_t>(i)), bytes);
}

void final_norm(Tensor normed, Tensor rstd, ConstTensor hidden, const ModelConfig& config, const Weights& weights,
                Stream& stream) {
  kernels::rmsnorm_forward(normed, rstd, hidden, weights.final_norm.view(), config.norm_eps, stream);
}

void head_logits(Tensor logits, ConstTensor normed, const Weights& weights, Stream& stream) {
  kernels::linear_forward(logits, normed, weights.head_weight(), {}, stream);
}

}  // namespace lockstep::model
