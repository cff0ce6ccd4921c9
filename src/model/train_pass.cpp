#include "model/train_pass.h"

#include <algorithm>

#include "core/error.h"
#include "core/profile_range.h"
#include "core/transfer.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/logprob.h"
#include "kernels/rmsnorm.h"
#include "model/block.h"
#include "model/head.h"
#include "model/train_memory.h"

namespace lockstep::model {

namespace {

void check_batch(const TrainBatch& batch) {
  const int64_t count = static_cast<int64_t>(batch.tokens.size());
  const auto& begins = batch.sequence_begin;
  const bool ends_fit = begins.size() >= 2 && begins.front() == 0 && begins.back() == count;
  if (!ends_fit || batch.targets.size() != batch.tokens.size() ||
      std::adjacent_find(begins.begin(), begins.end(), [](int64_t a, int64_t b) { return a >= b; }) != begins.end())
    throw ShapeError({.what = "a training batch does not fit together",
                      .where = "TrainBatch",
                      .got = std::to_string(count) + " tokens, " + std::to_string(batch.targets.size()) + " targets, " +
                             std::to_string(begins.size()) + " sequence bounds",
                      .wanted = "a target per token and bounds that rise from 0 to the number of tokens"});
}

void check_lanes(std::span<const lora::GradientRows> lanes, int64_t count) {
  int64_t end = 0;
  for (const lora::GradientRows& lane : lanes) {
    if (lane.row_begin < end || lane.rows < 0 || lane.row_begin + lane.rows > count || lane.gradient == nullptr)
      throw ShapeError({.what = "gradient lanes are not row ranges in order",
                        .where = "TrainPass::backward",
                        .got = std::to_string(lane.rows) + " rows from " + std::to_string(lane.row_begin),
                        .wanted = "within rows " + std::to_string(end) + " to " + std::to_string(count)});
    end = lane.row_begin + lane.rows;
  }
}

int64_t count_blocks(const TrainBatch& batch) {
  int64_t blocks = 0;
  for (size_t i = 1; i < batch.sequence_begin.size(); ++i)
    blocks += (batch.sequence_begin[i] - batch.sequence_begin[i - 1] + kernels::kKvBlock - 1) / kernels::kKvBlock;
  return blocks;
}

// Whole sequences over the KV memory of one layer. Unless each layer keeps its own (Recompute::none) every layer uses
// it in turn: backward stores keys and values anew.
struct PackedRows {
  std::vector<void*> blocks;
  std::vector<Segment> segments;

  // kv [blocks, elements of a block]
  PackedRows(const TrainBatch& batch, const lora::AdapterVersion* adapter, Tensor kv) {
    for (int64_t b = 0; b < kv[0]; ++b) blocks.push_back(kv.rows(b, b + 1).data);
    size_t next = 0;
    for (size_t i = 1; i < batch.sequence_begin.size(); ++i) {
      const int64_t begin = batch.sequence_begin[i - 1], rows = batch.sequence_begin[i] - begin;
      const size_t used = static_cast<size_t>((rows + kernels::kKvBlock - 1) / kernels::kKvBlock);
      segments.push_back({.row_begin = begin,
                          .rows = rows,
                          .first_position = 0,
                          .kv_blocks = {blocks.data() + next, used},
                          .adapter = adapter});
      next += used;
    }
  }
};

Tensor vector_of(Tensor matrix, int64_t row, int64_t begin, int64_t end) {
  return Tensor(matrix.row(row) + begin, DType::f32, {end - begin});
}

// The gradient of logits, as activations, in the memory of the logits (kernels/logprob.h).
Tensor gradient_in_place(Tensor logits, DType dtype) {
  Tensor d(logits.data, dtype, {logits[0], logits[1]});
  d.row_stride = logits.row_stride * dtype_bytes(logits.dtype) / dtype_bytes(dtype);
  return d;
}

}  // namespace

// Everything here lies in kept_.
struct TrainPass::Saved {
  explicit Saved(Arena& arena) : scope(arena) {}

  Arena::Scope scope;
  PassShape shape;
  bool entropy = false;
  bool done = false;  // forward has come to its end, backward has not begun
  float inv_temperature = 1;
  const lora::AdapterVersion* adapter = nullptr;
  int64_t first_layer = 0;
  Rows rows;
  std::vector<Tensor> x;                                 // input of each kept layer, and last the output of the model
  std::vector<BlockTensors> tensors;                     // of each kept layer; one set for all when recomputing
  std::span<const int32_t> wanted_rows, wanted_targets;  // rows with a target, in the stream's memory
  Tensor hidden, normed, rstd, logits;  // of the rows with a target; logits empty unless they fit the bound
  Tensor head;                          // [3, N]: logprob, entropy, lse
  Tensor outputs;                       // [2, T]: logprob, entropy

  const BlockTensors& of(int64_t layer) const {
    return tensors[shape.recompute == Recompute::full ? 0 : static_cast<size_t>(layer - first_layer)];
  }
  Tensor input(int64_t layer) const { return x[static_cast<size_t>(layer - first_layer)]; }
};

namespace {

PassShape shape_of(const TrainBatch& batch, const TargetRows& wanted, const lora::AdapterLayout& layout,
                   const Model& model, Device device) {
  PassShape shape;
  shape.activation_bytes = dtype_bytes(kernels::activation_dtype(device));
  shape.tokens = static_cast<int64_t>(batch.tokens.size());
  shape.kv_blocks = count_blocks(batch);
  shape.target_rows = wanted.size();
  shape.kept_layers = model.config().layers - layout.first_layer;
  shape.logits_rows = std::min(wanted.size(), model.logits_rows());
  shape.keep_logits = wanted.size() <= model.logits_rows();
  shape.gradient_floats = lora::gradient_floats(layout);
  for (size_t i = 1; i < batch.sequence_begin.size(); ++i)
    shape.gradient_blocks += kernels::gradient_blocks(batch.sequence_begin[i] - batch.sequence_begin[i - 1], device);
  for (const lora::Pair& pair : layout.pairs) shape.max_rank = std::max(shape.max_rank, pair.rank);
  return shape;
}

// h of a block's linear layers: those of one adapter lie side by side, as kernels/lora.h has them.
void keep_h(BlockTensors& t, const LayerWeights& w, const lora::AdapterLayout& layout, int64_t count, DType dtype,
            Arena& arena) {
  for (const auto& [layer, h] :
       {std::pair(&w.qkv, &t.h.qkv), {&w.o, &t.h.o}, {&w.gate_up, &t.h.gate_up}, {&w.down, &t.h.down}}) {
    int64_t rank = 0;
    for (const int pair : layout.pairs_at(layer->site)) rank += layout.pairs[static_cast<size_t>(pair)].rank;
    if (rank > 0) *h = arena.alloc({count, rank}, dtype);
  }
}

std::vector<BlockTensors> kept_tensors(const Model& model, const PassShape& shape, const lora::AdapterLayout& layout,
                                       DType dtype, Arena& arena) {
  const ModelConfig& c = model.config();
  const int64_t count = shape.tokens;
  BlockTensors shared;
  shared.norm = arena.alloc({count, c.width}, dtype);
  shared.act = arena.alloc({count, c.ffn}, dtype);
  shared.qk = arena.alloc({count, c.q_width() + c.kv_width()}, dtype);
  std::vector<BlockTensors> sets;
  for (int64_t i = 0; i < (shape.recompute == Recompute::full ? 1 : shape.kept_layers); ++i) {
    BlockTensors t = shared;
    t.qkv = arena.alloc({count, c.qkv_width()}, dtype);
    t.att = arena.alloc({count, c.q_width()}, dtype);
    t.stats = arena.alloc({count, c.heads, 2});
    t.mid = arena.alloc({count, c.width}, dtype);
    t.gate_up = arena.alloc({count, 2 * c.ffn}, dtype);
    if (shape.recompute == Recompute::none) {
      if (i > 0) {
        t.act = arena.alloc({count, c.ffn}, dtype);
        t.qk = arena.alloc({count, c.q_width() + c.kv_width()}, dtype);
      }
      if (c.qk_norm) t.qk_rstd = arena.alloc({count * (c.heads + c.kv_heads)});
    }
    const LayerWeights& weights = model.weights().layers[static_cast<size_t>(layout.first_layer + i)];
    if (shape.kept_ranks > 0) keep_h(t, weights, layout, count, dtype, arena);
    sets.push_back(t);
  }
  return sets;
}

}  // namespace

TrainPass::TrainPass(const Model& model, Stream& stream)
    : model_(model), stream_(stream), kept_(stream.device()), scratch_(stream.device()) {}
TrainPass::~TrainPass() = default;

HeadOutputs TrainPass::forward(const TrainBatch& batch, const lora::AdapterVersion& adapter,
                               const TrainOptions& options, const kernels::LoraDropout& dropout) {
  const ModelConfig& c = model_.config_;
  check_batch(batch);
  check_adapter(adapter, *model_.weights_);
  const TargetRows wanted = target_rows(batch.targets, c.vocab_size);
  PassShape shape = shape_of(batch, wanted, *adapter.layout, model_, stream_.device());
  shape.recompute = options.recompute;
  shape.dropout = dropout.p != 0;
  shape.kept_ranks = kept_ranks(*adapter.layout, options.recompute, shape.dropout, stream_.device());

  saved_.reset();
  reserve(kept_, kept_bytes(c, shape));
  reserve(scratch_, scratch_bytes(c, shape));
  saved_ = std::make_unique<Saved>(kept_);
  Saved& s = *saved_;
  s.shape = shape;
  s.entropy = options.entropy;
  s.inv_temperature = options.inv_temperature;
  s.adapter = &adapter;
  s.first_layer = adapter.layout->first_layer;
  s.wanted_rows = upload(std::span<const int32_t>(wanted.rows), kept_, stream_);
  s.wanted_targets = upload(std::span<const int32_t>(wanted.targets), kept_, stream_);

  const DType dtype = kernels::activation_dtype(stream_.device());
  // Of one layer, or of all, one after the other.
  const int64_t kv_blocks = shape.kv_blocks * kv_layers(c, shape);
  const Tensor kv = kept_.alloc({kv_blocks, model_.kv_layer_elements()}, dtype);
  const PackedRows packed(batch, &adapter, kv.rows(0, shape.kv_blocks));
  s.rows = prepare_rows({.tokens = batch.tokens, .segments = packed.segments, .kv_layer_stride = 0}, c,
                        *model_.weights_, *model_.rope_, kept_, stream_);
  s.rows.arena = &scratch_;
  if (kv_blocks > shape.kv_blocks) s.rows.kv_layer_stride = shape.kv_blocks * model_.kv_layer_elements();
  s.rows.adapters.dropout = dropout;
  for (int64_t i = 0; i <= shape.kept_layers; ++i) s.x.push_back(kept_.alloc({shape.tokens, c.width}, dtype));
  s.tensors = kept_tensors(model_, shape, *adapter.layout, dtype, kept_);

  const ProfileRange range("train/forward");
  kernels::embedding_gather(s.x.front(), model_.weights_->embedding.weight, s.rows.tokens, stream_);
  for (int64_t layer = 0; layer < s.first_layer; ++layer)
    block_forward(s.x.front(), s.x.front(), layer, s.rows, s.tensors.front());
  for (int64_t layer = s.first_layer; layer < c.layers; ++layer)
    block_forward(s.input(layer + 1), s.input(layer), layer, s.rows, s.of(layer));
  head_forward();
  s.done = true;
  return read_outputs(s.outputs, outputs_, options.entropy);
}

HeadOutputs TrainPass::read_outputs(Tensor outputs, Buffer& host, bool entropy) {
  const size_t bytes = static_cast<size_t>(outputs.elements()) * sizeof(float);
  if (host.bytes() < bytes) host = Buffer(bytes, Buffer::Fill::none);
  download(host.data(), outputs.data, bytes, stream_);
  const int64_t count = outputs[1];
  return {.logprob_T = ConstTensor(host.f32(), DType::f32, {count}),
          .entropy_T = entropy ? ConstTensor(host.f32() + count, DType::f32, {count}) : ConstTensor()};
}

void TrainPass::head_forward() {
  const ProfileRange range("train/head forward");
  Saved& s = *saved_;
  const int64_t count = s.shape.target_rows, width = model_.config_.width;
  const DType dtype = s.rows.dtype();
  s.outputs = kept_.alloc({2, s.shape.tokens});
  zero(s.outputs.data, static_cast<size_t>(s.outputs.elements()) * sizeof(float), stream_);
  s.hidden = kept_.alloc({count, width}, dtype);
  s.normed = kept_.alloc({count, width}, dtype);
  s.rstd = kept_.alloc({count});
  s.head = kept_.alloc({3, count});
  if (s.shape.keep_logits) s.logits = kept_.alloc({count, model_.config_.vocab_size});
  if (count == 0) return;
  kernels::gather_rows(s.hidden, s.x.back(), s.wanted_rows, stream_);
  final_norm(s.normed, s.rstd, s.hidden, model_.config_, *model_.weights_, stream_);

  const Arena::Scope scope(scratch_);
  const Tensor chunk =
      s.shape.keep_logits ? s.logits : scratch_.alloc({s.shape.logits_rows, model_.config_.vocab_size});
  for (int64_t begin = 0; begin < count; begin += s.shape.logits_rows) {
    const int64_t end = std::min(count, begin + s.shape.logits_rows);
    const Tensor logits = chunk.rows(0, end - begin);
    head_logits(logits, s.normed.rows(begin, end), *model_.weights_, stream_);
    kernels::logprob_forward(vector_of(s.head, 0, begin, end), s.entropy ? vector_of(s.head, 1, begin, end) : Tensor(),
                             vector_of(s.head, 2, begin, end), logits,
                             s.wanted_targets.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                             s.inv_temperature, stream_);
  }
  kernels::scatter_rows(vector_of(s.outputs, 0, 0, s.shape.tokens), vector_of(s.head, 0, 0, count), s.wanted_rows,
                        stream_);
  if (s.entropy)
    kernels::scatter_rows(vector_of(s.outputs, 1, 0, s.shape.tokens), vector_of(s.head, 1, 0, count), s.wanted_rows,
                          stream_);
}

void TrainPass::head_backward(Tensor d, ConstTensor d_logprob_T, ConstTensor d_entropy_T) {
  const ProfileRange range("train/head backward");
  Saved& s = *saved_;
  const Weights& weights = *model_.weights_;
  const int64_t count = s.shape.target_rows, rows = s.shape.logits_rows;
  zero(d.data, static_cast<size_t>(d.elements() * dtype_bytes(d.dtype)), stream_);
  if (count == 0) return;

  const Arena::Scope scope(scratch_);
  const Tensor d_hidden = scratch_.alloc({count, model_.config_.width}, d.dtype);
  const Tensor d_outputs = scratch_.alloc({2, count});
  const auto gather = [&](int64_t row, ConstTensor host) {
    const Tensor all = scratch_.alloc({host[0]});
    upload(all.data, host.data, static_cast<size_t>(host[0]) * sizeof(float), stream_);
    kernels::gather_rows(vector_of(d_outputs, row, 0, count), all, s.wanted_rows, stream_);
  };
  gather(0, d_logprob_T);
  if (!d_entropy_T.empty()) gather(1, d_entropy_T);
  const Tensor chunk = s.shape.keep_logits ? s.logits : scratch_.alloc({rows, model_.config_.vocab_size});
  for (int64_t begin = 0; begin < count; begin += rows) {
    const int64_t end = std::min(count, begin + rows);
    const Tensor logits = chunk.rows(0, end - begin);
    if (!s.shape.keep_logits) head_logits(logits, s.normed.rows(begin, end), weights, stream_);
    const bool entropy = !d_entropy_T.empty();
    const Tensor d_logits = gradient_in_place(logits, d.dtype);
    kernels::logprob_backward(
        d_logits, logits, s.wanted_targets.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
        s.inv_temperature, vector_of(s.head, 2, begin, end), entropy ? vector_of(s.head, 1, begin, end) : Tensor(),
        vector_of(d_outputs, 0, begin, end), entropy ? vector_of(d_outputs, 1, begin, end) : Tensor(), stream_);
    kernels::linear_backward({.dx = d_hidden.rows(begin, end), .dy = d_logits, .weight = weights.head_weight()},
                             stream_);
  }
  kernels::rmsnorm_backward(d_hidden, d_hidden, s.hidden, weights.final_norm.view(), s.rstd, false, stream_);
  kernels::scatter_rows(d, d_hidden, s.wanted_rows, stream_);
}

void TrainPass::backward(ConstTensor d_logprob_T, ConstTensor d_entropy_T, std::span<const lora::GradientRows> lanes) {
  if (!saved_ || !saved_->done)
    throw ShapeError({.what = "backward without a forward before it", .where = "TrainPass"});
  Saved& s = *saved_;
  const ModelConfig& c = model_.config_;
  const int64_t count = s.shape.tokens;
  require_f32(d_logprob_T, {count}, "TrainPass::backward", "d_logprob");
  if (!d_entropy_T.empty()) require_f32(d_entropy_T, {count}, "TrainPass::backward", "d_entropy");
  if (!d_entropy_T.empty() && !s.entropy)
    throw ShapeError({.what = "a gradient for an entropy that was not computed",
                      .where = "TrainPass::backward",
                      .attempt = "TrainOptions::entropy"});
  check_lanes(lanes, count);
  s.done = false;

  const Arena::Scope scope(scratch_);
  const DType dtype = s.rows.dtype();
  BlockGradient g;
  g.d = scratch_.alloc({count, c.width}, dtype);
  head_backward(g.d, d_logprob_T, d_entropy_T);
  g.d_norm = scratch_.alloc({count, c.width}, dtype);
  g.d_act = scratch_.alloc({count, c.ffn}, dtype);
  g.d_att = scratch_.alloc({count, c.q_width()}, dtype);
  g.d_qkv = scratch_.alloc({count, c.qkv_width()}, dtype);
  g.att_dot = scratch_.alloc({count, c.heads});
  g.rstd = scratch_.alloc({count});
  if (c.qk_norm) g.qk_rstd = scratch_.alloc({count * (c.heads + c.kv_heads)});
  const kernels::GradientPlan plan =
      kernels::plan_gradients(lanes, lora::gradient_floats(*s.adapter->layout), scratch_, stream_);
  for (lora::AdapterRows& rows : s.rows.adapters.rows) rows.gradients = &plan;
  const ProfileRange range("train/backward");
  const bool kept = s.shape.recompute == Recompute::none, whole = s.shape.recompute == Recompute::full;
  for (int64_t layer = c.layers - 1; layer >= s.first_layer; --layer) {
    const BlockTensors& t = s.of(layer);
    if (whole) block_forward_kept(s.input(layer), layer, s.rows, t);
    if (!kept && (c.qk_norm || !whole)) prepare_heads(layer, s.rows, t, g.qk_rstd, !whole);
    block_backward({.g = g,
                    .x = s.input(layer),
                    .layer = layer,
                    .rows = s.rows,
                    .t = t,
                    .act_is_kept = kept,
                    .is_last = layer == s.first_layer});
  }
}

void TrainPass::release_memory() {
  saved_.reset();
  kept_.release();
  scratch_.release();
}

HeadOutputs TrainPass::score(const TrainBatch& batch, const lora::AdapterVersion* adapter,
                             const TrainOptions& options) {
  check_batch(batch);
  const int64_t count = static_cast<int64_t>(batch.tokens.size());
  const DType dtype = kernels::activation_dtype(stream_.device());
  reserve(scratch_, score_bytes(model_.config_, count, count_blocks(batch), model_.logits_rows(), dtype_bytes(dtype)));
  const Arena::Scope scope(scratch_);
  greedy_.resize(options.greedy ? static_cast<size_t>(count) : 0);
  const Tensor outputs = scratch_.alloc({2, count});
  const PackedRows packed(batch, adapter, scratch_.alloc({count_blocks(batch), model_.kv_layer_elements()}, dtype));
  const Tensor hidden = scratch_.alloc({count, model_.config_.width}, dtype);
  model_.forward(hidden, {.tokens = batch.tokens, .segments = packed.segments, .kv_layer_stride = 0}, scratch_,
                 stream_);
  model_.logprobs(vector_of(outputs, 0, 0, count), options.entropy ? vector_of(outputs, 1, 0, count) : Tensor(), hidden,
                  batch.targets, options.inv_temperature, scratch_, stream_, greedy_);
  HeadOutputs heads = read_outputs(outputs, score_outputs_, options.entropy);
  heads.greedy_T = greedy_;
  return heads;
}

}  // namespace lockstep::model
