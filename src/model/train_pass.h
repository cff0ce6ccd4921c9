// Forward and backward of one micro-batch of whole packed sequences, with gradients for adapter tensors only.
//
// The head returns per token {logprob, entropy} and takes a gradient for each; it never sees a loss.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/model.h"

namespace lockstep::model {

struct TrainBatch {
  std::span<const int32_t> tokens;          // [T], sequences back to back
  std::span<const int64_t> sequence_begin;  // [B + 1], first is 0, last is T
  std::span<const int32_t> targets;         // [T]: target of the logits at this row (usually the next token); -1: none
};

// What backward makes again instead of keeping it; the bits are the same.
//   none       the outputs of norms
//   selective  those of activation functions, rotated queries and keys, and the adapters' x A, too
//   full       whole blocks: only their inputs are kept
enum class Recompute { none, selective, full };
const char* recompute_name(Recompute recompute);

struct TrainOptions {
  float inv_temperature = 1;
  Recompute recompute = Recompute::selective;
  bool entropy = false;  // compute entropy (needed when its gradient is given)
  bool greedy = false;   // score only: the token of the largest logit
};

struct HeadOutputs {
  ConstTensor logprob_T, entropy_T;   // [T] f32, host memory; 0 where there is no target; valid until the next forward
  std::span<const int32_t> greedy_T;  // [T] host memory; -1 where there is no target
};

class TrainPass {
 public:
  TrainPass(const Model& model, Stream& stream);
  ~TrainPass();

  // Keeps what backward needs. `adapter` is the version being trained; dropout acts on its inputs. The memory behind
  // `adapter` and `dropout` must live until backward; that behind `batch` need not. DataError: token or target outside
  // the vocabulary, a sequence longer than the model allows. ShapeError: lengths that do not fit together.
  HeadOutputs forward(const TrainBatch& batch, const lora::AdapterVersion& adapter, const TrainOptions& options,
                      const kernels::LoraDropout& dropout = {});

  // d_logprob_T, d_entropy_T [T], host memory (the latter may be empty) -> adds to the gradient lanes (flat f32 buffers
  // in the adapter's layout, in the stream's memory). Lanes are row ranges in order; rows of no lane add nothing. Stops
  // below the lowest adapted layer. Call once after forward (ShapeError).
  void backward(ConstTensor d_logprob_T, ConstTensor d_entropy_T, std::span<const lora::GradientRows> lanes);

  // Log-probabilities only, nothing kept: the reference policy (adapter nullptr), scoring, evaluation losses. May be
  // called between forward and backward; its outputs are valid until the next score.
  HeadOutputs score(const TrainBatch& batch, const lora::AdapterVersion* adapter, const TrainOptions& options);

  // Gives all memory back; what forward kept is forgotten.
  void release_memory();

  // Estimated bytes of activations for T tokens (for --dry-run and for choosing micro-batches).
  static int64_t activation_bytes(const ModelConfig& config, const lora::AdapterLayout& layout, int64_t tokens,
                                  Recompute recompute, Device device);

 private:
  struct Saved;  // between forward and backward

  void head_forward();
  HeadOutputs read_outputs(Tensor outputs, Buffer& host, bool entropy);
  void head_backward(Tensor d, ConstTensor d_logprob_T, ConstTensor d_entropy_T);

  const Model& model_;
  Stream& stream_;
  Arena kept_, scratch_;
  std::unique_ptr<Saved> saved_;
  Buffer outputs_, score_outputs_;  // host memory
  std::vector<int32_t> greedy_;
};

}  // namespace lockstep::model
