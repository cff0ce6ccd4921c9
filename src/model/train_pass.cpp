#include "model/train_pass.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/profile_range.h"
#include "core/transfer.h"
#include "model/candidates.h"
#include "model/embedding.h"
#include "model/tensor_places.h"
#include "model/train_batch.h"
#include "model/train_saved.h"

namespace lockstep::model {

namespace {

PassShape shape_of(const TrainBatch& batch, const ComputedRows& computed, const TargetRows& wanted,
                   SequenceAdapters adapters, const Model& model, Device device) {
  PassShape shape;
  shape.activation_bytes = dtype_bytes(kernels::activation_dtype(device));
  shape.tokens = static_cast<int64_t>(computed.tokens.size());
  shape.rows = static_cast<int64_t>(batch.tokens.size());
  shape.kv_blocks = count_blocks(batch);
  shape.target_rows = wanted.size();
  shape.logits_rows = std::min(wanted.size(), model.logits_rows());
  shape.keep_logits = wanted.size() <= model.logits_rows();
  shape.candidates = shape.rows > 0 ? static_cast<int64_t>(batch.candidates.size()) / shape.rows : 0;
  for (size_t i = 1; i < batch.sequence_begin.size(); ++i)
    shape.gradient_blocks += kernels::gradient_blocks(
        batch.sequence_begin[i] - batch.sequence_begin[i - 1] - shared_rows(batch, i - 1), device);
  shape.fused_head = fuses_head(model.config(), shape, device);
  const lora::AdapterLayout* last = nullptr;  // neighbours often have the same
  for (const lora::AdapterVersion* adapter : adapters) {
    if (!adapter || adapter->layout.get() == last) continue;
    last = adapter->layout.get();
    shape.kept_layers = std::max(shape.kept_layers, model.config().layers - last->first_layer);
    shape.gradient_floats = std::max(shape.gradient_floats, lora::gradient_floats(*last));
    add_adapter(shape, *last);
    shape.fused_head = shape.fused_head && lora::is_plain(*last);
  }
  return shape;
}

}  // namespace

TrainPass::TrainPass(const Model& model, Stream& stream)
    : model_(model), stream_(stream), kept_(stream.device()), scratch_(stream.device()) {}
TrainPass::~TrainPass() = default;

HeadOutputs TrainPass::forward(const TrainBatch& batch, const lora::AdapterVersion& adapter,
                               const TrainOptions& options, const kernels::LoraDropout& dropout) {
  const std::vector<const lora::AdapterVersion*> adapters(std::max<size_t>(1, batch.sequence_begin.size()) - 1,
                                                          &adapter);
  return forward(batch, adapters, options, dropout);
}

HeadOutputs TrainPass::forward(const TrainBatch& batch, SequenceAdapters adapters, const TrainOptions& options,
                               const kernels::LoraDropout& dropout) {
  const ModelSpec& c = model_.config_;
  check_batch(batch);
  check_adapters(adapters, batch, *model_.weights_);
  if (dropout.p != 0 && std::ranges::any_of(batch.shared, [](int64_t rows) { return rows > 0; }))
    throw ShapeError({.what = "sequences that share rows have one input for both, and dropout is of each",
                      .where = "TrainPass::forward"});
  TargetRows wanted = target_rows(batch.targets, c.vocab_size);
  ComputedRows computed(batch);
  PassShape shape = shape_of(batch, computed, wanted, adapters, model_, stream_.device());
  shape.recompute = options.recompute;
  if (!options.logprobs) shape.logits_rows = shape.candidates = 0, shape.keep_logits = false;
  shape.dropout = dropout.p != 0;
  const lora::AdapterLayout* const only = only_layout(adapters);
  if (only) shape.kept_ranks = kept_ranks(*only, options.recompute, shape.dropout, stream_.device());

  saved_.reset();
  reserve(kept_, kept_bytes(c, shape));
  reserve(scratch_, scratch_bytes(c, shape));
  saved_ = std::make_unique<Saved>(kept_);
  Saved& s = *saved_;
  s.shape = shape;
  s.entropy = options.entropy;
  s.logprobs = options.logprobs;
  s.inv_temperature = options.inv_temperature;
  s.first_layer = c.layers - shape.kept_layers;
  s.wanted = std::move(wanted);
  s.wanted_rows = upload(std::span<const int32_t>(s.wanted.rows), kept_, stream_);
  s.wanted_targets = upload(std::span<const int32_t>(s.wanted.targets), kept_, stream_);
  const std::vector<int32_t> hidden_rows = computed_rows(s.wanted.rows, computed.before);
  s.hidden_rows = upload(std::span<const int32_t>(hidden_rows), kept_, stream_);
  s.before = std::move(computed.before);
  if (shape.candidates > 0) {
    s.candidates = upload_candidates(batch.candidates, shape.rows, s.wanted, c.vocab_size, kept_, stream_);
    s.candidate_logprobs = kept_.alloc({s.wanted.size(), shape.candidates});
  }

  const DType dtype = kernels::activation_dtype(stream_.device());
  // Of one layer, or of all, one after the other.
  const int64_t kv_blocks = shape.kv_blocks * kv_layers(c, shape);
  const Tensor kv = kept_.alloc({kv_blocks, model_.kv_layer_elements()}, dtype);
  const PackedRows packed(batch, adapters, kv.rows(0, shape.kv_blocks));
  s.rows = prepare_rows({.tokens = computed.tokens, .segments = packed.segments, .kv_layer_stride = 0}, c,
                        *model_.weights_, *model_.rope_, kept_, stream_);
  s.rows.arena = &scratch_;
  if (kv_blocks > shape.kv_blocks) s.rows.kv_layer_stride = shape.kv_blocks * model_.kv_layer_elements();
  s.rows.adapters.dropout = dropout;
  s.head_adapters = gather_adapters(s.rows.adapters, hidden_rows, s.hidden_rows, kept_, stream_);
  for (const lora::AdapterVersion* adapter : adapters)
    s.trains_embedding = s.trains_embedding || (adapter && adapter->layout->trains_embedding);
  for (int64_t i = 0; i <= shape.kept_layers; ++i) s.x.push_back(kept_.alloc({shape.tokens, c.width}, dtype));
  s.tensors = kept_tensors(model_, shape, only, dtype, kept_);

  const ProfileRange range("train/forward");
  embed(s.x.front(), s.rows);
  for (int64_t layer = 0; layer < s.first_layer; ++layer)
    block_forward(s.x.front(), s.x.front(), layer, s.rows, s.tensors.front());
  for (int64_t layer = s.first_layer; layer < c.layers; ++layer)
    block_forward(s.input(layer + 1), s.input(layer), layer, s.rows, s.of(layer));
  head_forward();
  s.done = true;
  HeadOutputs heads;
  if (options.logprobs) heads = forward_outputs(options.entropy);
  heads.hidden_ND = s.normed;
  return heads;
}

HeadOutputs TrainPass::forward_outputs(bool entropy) {
  const Saved& s = *saved_;
  HeadOutputs heads = read_outputs(s.outputs, outputs_, entropy);
  if (s.shape.candidates == 0) return heads;
  candidate_logprobs_.assign(static_cast<size_t>(s.shape.rows * s.shape.candidates), 0.0f);
  download_rows(candidate_logprobs_, s.candidate_logprobs, s.wanted.rows, stream_);
  heads.candidate_logprob_TK = ConstTensor(candidate_logprobs_.data(), DType::f32, {s.shape.rows, s.shape.candidates});
  return heads;
}

HeadOutputs TrainPass::read_outputs(Tensor outputs, Buffer& host, bool entropy) {
  const size_t bytes = static_cast<size_t>(outputs.elements()) * sizeof(float);
  if (host.bytes() < bytes) host = Buffer(bytes, Buffer::Fill::none);
  download(host.data(), outputs.data, bytes, stream_);
  const int64_t count = outputs[1];
  return {.logprob_T = ConstTensor(host.f32(), DType::f32, {count}),
          .entropy_T = entropy ? ConstTensor(host.f32() + count, DType::f32, {count}) : ConstTensor()};
}

void TrainPass::backward(const HeadGradients& d, std::span<const lora::GradientRows> lanes) {
  if (!saved_ || !saved_->done)
    throw ShapeError({.what = "backward without a forward before it", .where = "TrainPass"});
  Saved& s = *saved_;
  const ModelSpec& c = model_.config_;
  const int64_t count = s.shape.tokens, rows = s.shape.rows;
  if (s.logprobs) require_f32(d.logprob_T, {rows}, "TrainPass::backward", "logprob");
  if (!d.entropy_T.empty()) require_f32(d.entropy_T, {rows}, "TrainPass::backward", "entropy");
  if (!d.hidden_ND.empty() || !s.logprobs)
    require_tensor(d.hidden_ND, s.rows.dtype(), {s.shape.target_rows, c.width}, "TrainPass::backward", "hidden");
  if (!d.entropy_T.empty() && !s.entropy)
    throw ShapeError({.what = "a gradient for an entropy that was not computed",
                      .where = "TrainPass::backward",
                      .attempt = "TrainOptions::entropy"});
  if (!d.candidate_logprob_TK.empty())
    require_f32(d.candidate_logprob_TK, {rows, s.shape.candidates}, "TrainPass::backward", "candidate_logprob");
  check_lanes(lanes, rows);
  s.done = false;

  const Arena::Scope scope(scratch_);
  const DType dtype = s.rows.dtype();
  BlockGradient g;
  g.d = scratch_.alloc({count, c.width}, dtype);
  head_backward(g.d, d, lanes);
  if (s.shape.kept_layers == 0) return;
  allocate_scratch(g, c, count, dtype, scratch_);
  g.att_score_gradients = memory_of_logits();
  const std::vector<lora::GradientRows> own_lanes = computed_lanes(lanes, s.before);
  const std::vector<kernels::GradientPlan> plans = plan_by_adapter(s.rows.adapters.rows, own_lanes, scratch_, stream_);
  for (size_t i = 0; i < plans.size(); ++i) s.rows.adapters.rows[i].gradients = &plans[i];
  const ProfileRange range("train/backward");
  const bool kept = keeps_activations(s.shape.recompute), whole = s.shape.recompute == Recompute::full;
  for (int64_t layer = c.layers - 1; layer >= s.first_layer; --layer) {
    const BlockTensors& t = s.of(layer);
    if (whole) block_forward_kept(s.input(layer), layer, s.rows, t);
    if (!kept && (c.qk_norm || !whole)) prepare_heads(layer, s.rows, t, g.qk_rstd, !whole);
    block_backward({.g = g,
                    .x = s.input(layer),
                    .layer = layer,
                    .rows = s.rows,
                    .y = s.input(layer + 1),
                    .t = t,
                    .act_is_kept = kept,
                    .is_last = layer == s.first_layer && !s.trains_embedding});
  }
  if (s.trains_embedding) embed_backward(g.d, s.rows);
}

Tensor TrainPass::memory_of_logits() {
  const PassShape& shape = saved_->shape;
  if (shape.logits_rows == 0 || stream_.device() == Device::cpu) return {};
  const Tensor logits = shape.keep_logits ? saved_->logits.values : alloc_logits(scratch_, shape.logits_rows).values;
  const DType dtype = saved_->rows.dtype();
  return Tensor(logits.data, dtype, {logits.elements() * dtype_bytes(logits.dtype) / dtype_bytes(dtype)});
}

void TrainPass::release_memory() {
  saved_.reset();
  kept_.release();
  scratch_.release();
}

HeadOutputs TrainPass::score(const TrainBatch& batch, const lora::AdapterVersion* adapter,
                             const TrainOptions& options) {
  check_batch(batch);
  if (!batch.shared.empty())
    throw ShapeError({.what = "a score computes every row", .where = "TrainPass::score", .wanted = "no shared rows"});
  const int64_t count = static_cast<int64_t>(batch.tokens.size());
  const DType dtype = kernels::activation_dtype(stream_.device());
  const int64_t candidates = count > 0 ? static_cast<int64_t>(batch.candidates.size()) / count : 0;
  const bool fused = !options.greedy && options.top == 0 && (!adapter || lora::is_plain(*adapter->layout)) &&
                     fuses_head(model_.config_, {.candidates = candidates}, stream_.device());
  reserve(scratch_, score_bytes(model_.config_, count, count_blocks(batch), model_.logits_rows(), dtype_bytes(dtype),
                                candidates + 2 * options.top, fused));
  const Arena::Scope scope(scratch_);
  greedy_.resize(options.greedy ? static_cast<size_t>(count) : 0);
  score_candidate_logprobs_.resize(batch.candidates.size());
  top_.resize(static_cast<size_t>(count * options.top));
  top_logprobs_.resize(top_.size());
  const Tensor outputs = scratch_.alloc({2, count});
  const std::vector<const lora::AdapterVersion*> adapters(batch.sequence_begin.size() - 1, adapter);
  const PackedRows packed(batch, adapters, scratch_.alloc({count_blocks(batch), model_.kv_layer_elements()}, dtype));
  const Tensor hidden = scratch_.alloc({count, model_.config_.width}, dtype);
  model_.forward(hidden, {.tokens = batch.tokens, .segments = packed.segments, .kv_layer_stride = 0}, scratch_,
                 stream_);
  model_.logprobs(
      {.logprob_N = vector_of(outputs, 0, 0, count),
       .entropy_N = options.entropy ? vector_of(outputs, 1, 0, count) : Tensor(),
       .hidden_ND = hidden,
       .targets = batch.targets,
       .adapters = {.rows = {{.row_begin = 0, .rows = count, .adapter = adapter}}, .tiles = {}, .dropout = {}},
       .inv_temperature = options.inv_temperature,
       .greedy = greedy_,
       .candidates = batch.candidates,
       .candidate_logprobs = score_candidate_logprobs_,
       .top_tokens = top_,
       .top_logprobs = top_logprobs_},
      scratch_, stream_);
  HeadOutputs heads = read_outputs(outputs, score_outputs_, options.entropy);
  heads.greedy_T = greedy_;
  heads.top_TK = top_;
  heads.top_logprob_TK = top_logprobs_;
  if (candidates > 0)
    heads.candidate_logprob_TK = ConstTensor(score_candidate_logprobs_.data(), DType::f32, {count, candidates});
  return heads;
}

}  // namespace lockstep::model
