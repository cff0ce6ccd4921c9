// One transformer block, forward and backward: the only code that runs a block, for training, prefill and decode.
//   n1 = norm(x);  q,k,v = qkv(n1);  q,k = rope(norm(q), norm(k));  m = x + o(attention(q, K, V))
//   n2 = norm(m);  g,u = gate_up(n2);  y = m + down(silu(g) * u)
// Each of qkv, o, gate_up and down is one kernels::LinearCall: norm, bias, base, residual and adapter.
// T rows, D width, F feed-forward, Q = heads * head_dim, C = kv_heads * head_dim. Activations are f32 on the CPU, bf16
// on a GPU (kernels::activation_dtype).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/memory.h"
#include "kernels/attention.h"
#include "kernels/qk_norm_rope.h"
#include "kernels/rope.h"
#include "model/block_tensors.h"
#include "model/linear.h"
#include "model/model.h"

namespace lockstep::model {

// What the blocks of one pass share. Made by prepare_rows; what a GPU reads lies in its arena.
struct Rows {
  const ModelSpec* config = nullptr;
  const Weights* weights = nullptr;
  std::shared_ptr<const kernels::RopeTable> rope;
  std::span<const int32_t> tokens, positions;  // [T] in the stream's memory
  RowAdapters adapters;
  std::vector<void*> blocks;                          // of every sequence; host memory of pointers
  std::vector<kernels::AttentionSequence> sequences;  // their blocks point into `blocks`
  kernels::AttentionRows attention;
  int64_t kv_layer_stride = 0;  // elements
  Arena* arena = nullptr;
  Stream* stream = nullptr;

  Rows() = default;
  Rows(Rows&&) = default;
  Rows& operator=(Rows&&) = default;

  int64_t size() const { return static_cast<int64_t>(positions.size()); }
  DType dtype() const { return kernels::activation_dtype(stream->device()); }
};

// Checks a batch and lays out what the blocks need. DataError: positions beyond the model, tokens outside its
// vocabulary; ShapeError: segments that do not cover the rows, too few KV blocks, an adapter of another model.
Rows prepare_rows(const RowBatch& batch, const ModelSpec& config, const Weights& weights, RopeCache& rope, Arena& arena,
                  Stream& stream);

// Some rows of a batch as a batch of their own, whose keys and values the whole batch stores.
struct WantedRows {
  Rows rows;
  std::span<const int32_t> index;  // which of the batch's rows they are; in the stream's memory
};
// batch.wanted, if that is at most half of the rows: beyond that the copies cost what they save.
// ShapeError: not rising, or outside the rows.
std::optional<WantedRows> few_wanted_rows(const RowBatch& batch, const ModelSpec& config, const Weights& weights,
                                          RopeCache& rope, Arena& arena, Stream& stream);

// ShapeError unless the adapter's layout has the model's sites. Throws as require_extras, too.
void check_adapter(const lora::AdapterVersion& adapter, const Weights& weights);

// y [T, D] may be x. Stores the rows' keys and values.
void block_forward(Tensor y, ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t);

// Stores all rows' keys and values, but updates x [T, D] for the wanted rows only.
void block_forward_wanted(Tensor x, int64_t layer, const Rows& rows, const WantedRows& wanted, const BlockTensors& t);

// Everything of block_forward that backward reads: all but down.
void block_forward_kept(ConstTensor x, int64_t layer, const Rows& rows, const BlockTensors& t);

// The way back through one block. `x` is its input.
struct BlockBackward {
  const BlockGradient& g;
  ConstTensor x;
  int64_t layer;
  const Rows& rows;  // their adapters have gradients
  ConstTensor y;     // its output
  // As block_forward wrote them. gate_up is overwritten; norm and post_norm are scratch memory unless their rstd is
  // kept.
  const BlockTensors& t;
  bool act_is_kept = false;  // act is this block's alone; else it is scratch memory, too
  bool is_last = false;      // nothing below the lowest adapted layer of this block is computed
};
// Reads the block's tensors and its keys and values. Adds the adapters' gradients.
void block_backward(const BlockBackward& call);

// q and k of t.qkv into t.qk: norm (if the model has it) and rotation; keys and values into the blocks if `store`,
// which leaves the keys of t.qk undefined. rstd as in BlockGradient, or empty.
void prepare_heads(int64_t layer, const Rows& rows, const BlockTensors& t, Tensor rstd, bool store);

kernels::QkNormRopeSpec qk_norm_rope_spec(int64_t layer, const Rows& rows);
kernels::AttentionShape attention_shape(const ModelSpec& config, int64_t layer);  // of memory of one layer
kernels::AttentionShape attention_shape(const Rows& rows, int64_t layer);         // within the rows' blocks

}  // namespace lockstep::model
