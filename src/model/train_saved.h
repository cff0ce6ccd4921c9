// What a TrainPass keeps between forward and backward.
#pragma once

#include <span>
#include <vector>

#include "model/block.h"
#include "model/head.h"
#include "model/train_memory.h"
#include "model/train_pass.h"

namespace lockstep::model {

// Of rows with a target: logits, or with a fused head softmax's weights and their sums (kernels/linear_logprob.h).
struct TrainPass::Logits {
  Tensor values, sums;

  Logits rows(int64_t begin, int64_t end) const {
    return {values.rows(begin, end), sums.empty() ? Tensor() : sums.rows(begin, end)};
  }
};

// Everything here lies in kept_.
struct TrainPass::Saved {
  explicit Saved(Arena& arena) : scope(arena) {}

  Arena::Scope scope;
  PassShape shape;
  bool entropy = false, logprobs = true;
  bool done = false;  // forward has come to its end, backward has not begun
  float inv_temperature = 1;
  int64_t first_layer = 0;
  bool trains_embedding = false;
  Rows rows;
  std::vector<Tensor> x;                                 // input of each kept layer, and last the output of the model
  std::vector<BlockTensors> tensors;                     // of each kept layer; one set for all when recomputing
  TargetRows wanted;                                     // rows with a target
  std::span<const int32_t> wanted_rows, wanted_targets;  // the same in the stream's memory
  std::span<const int32_t> hidden_rows;                  // these rows among the computed ones, in the stream's memory
  std::vector<int64_t> before;                           // ComputedRows::before
  RowAdapters head_adapters;                             // of the rows with a target
  Tensor hidden, normed, rstd;                           // of the rows with a target
  Logits logits;                                         // empty unless they fit the bound
  Tensor head;                          // [4, N]: logprob, entropy, lse, z of the target (fused head only)
  Tensor outputs;                       // [2, rows of the batch]: logprob, entropy
  std::span<const int32_t> candidates;  // [N * K] of the rows with a target, in the stream's memory
  Tensor candidate_logprobs;            // [N, K]; both empty without candidates

  const BlockTensors& of(int64_t layer) const {
    return tensors[shape.recompute == Recompute::full ? 0 : static_cast<size_t>(layer - first_layer)];
  }
  std::span<const int32_t> candidates_of(int64_t begin, int64_t end) const {
    return candidates.subspan(static_cast<size_t>(begin * shape.candidates),
                              static_cast<size_t>((end - begin) * shape.candidates));
  }
  Tensor input(int64_t layer) const { return x[static_cast<size_t>(layer - first_layer)]; }
};

// The part of a [.., N] matrix's row.
inline Tensor vector_of(Tensor matrix, int64_t row, int64_t begin, int64_t end) {
  return Tensor(matrix.row(row) + begin, DType::f32, {end - begin});
}

}  // namespace lockstep::model
