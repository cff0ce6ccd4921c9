#include "rollout/local/decode_loop.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/transfer.h"

namespace lockstep::rollout {

DecodeLoop::DecodeLoop(const model::Model& model, BlockPool& pool, Stream& stream,
                       std::function<void()> while_recording)
    : model_(model),
      pool_(pool),
      stream_(stream),
      while_recording_(std::move(while_recording)),
      arena_(stream.device()) {}

size_t DecodeLoop::span_bytes(const DecodeShape& shape) const {
  return static_cast<size_t>(kernels::span_scratch_floats(model_.attention_shape(0), shape.rows, shape.positions())) *
         sizeof(float);
}

// Memory for the inputs and for the results of the steps.
void DecodeLoop::reserve(const DecodeShape& shape) {
  const size_t result_bytes = static_cast<size_t>(kMaxSteps * shape.rows) * (sizeof(int32_t) + sizeof(float));
  const size_t scratch_bytes = span_bytes(shape);
  if (state_.bytes() >= staged_.size() && results_.bytes() >= result_bytes && spans_.bytes() >= scratch_bytes) return;
  graphs_.clear();  // they contain addresses of the old memory
  state_ = Buffer(2 * staged_.size(), Buffer::Fill::none, stream_.device());
  results_ = Buffer(2 * result_bytes, Buffer::Fill::none, stream_.device());
  spans_ = Buffer(2 * scratch_bytes, Buffer::Fill::none, stream_.device());
}

kernels::DecodeState DecodeLoop::place(std::span<const DecodeInput> inputs, const DecodeShape& shape) {
  const DecodeBatch batch(inputs, shape, model_.attention_shape(0), pool_.spare_memory());
  const PlacedBatch placed = place_batch(batch, several_, staged_);
  reserve(shape);
  upload(state_.data(), staged_.data(), staged_.size(), stream_);
  zero(spans_.data(), span_bytes(shape), stream_);  // every step leaves its counters at zero
  const bool shares = !batch.shared_spans.empty();
  sequences_ = {.sequences = placed.sequences.in(state_),
                .blocks = placed.blocks.in(state_),
                .sequence_of_row = placed.sequence_of_row.in(state_),
                .num_sequences = shape.rows,
                .max_positions = shape.positions(),
                .span_scratch = spans_.f32(),
                .shared_spans = shares ? placed.shared_spans.in(state_) : nullptr,
                .first_own_span = shares ? placed.first_own_span.in(state_) : nullptr,
                .num_shared_spans = static_cast<int64_t>(batch.shared_spans.size())};
  tiles_ = several_.tiles.empty() ? kernels::LoraTiles()
                                  : several_.tiles.on_device(placed.tiles.in(state_), placed.sites.in(state_));
  const auto places = static_cast<int64_t>(several_.rank_rows.size()) / 2;
  rank_rows_ =
      places == 0 ? kernels::RankRows() : kernels::RankRows{.rows = placed.rank_rows.in(state_), .adapters = places};
  auto* const drawn = static_cast<int32_t*>(results_.data());
  return {.tokens = placed.tokens.in(state_),
          .positions = placed.positions.in(state_),
          .sequences = placed.sequences.in(state_),
          .rows = placed.samples.in(state_),
          .num_rows = shape.rows,
          .num_active = placed.num_active.in(state_),
          .step = placed.step.in(state_),
          .drawn = drawn,
          .logprobs = reinterpret_cast<float*>(drawn + kMaxSteps * shape.rows)};
}

void DecodeLoop::step(const kernels::DecodeState& state, float inv_temperature) {
  const Arena::Scope scope(arena_);
  const model::ModelSpec& c = model_.config();
  const int64_t rows = state.num_rows;
  const auto count = static_cast<size_t>(rows);
  const Tensor hidden = arena_.alloc({rows, c.width}, kernels::activation_dtype(stream_.device()));
  const Tensor logits = arena_.alloc({rows, c.vocab_size});
  model_.forward(hidden,
                 model::DecodeRows{
                     .tokens = std::span(state.tokens, count),
                     .positions = std::span(state.positions, count),
                     .sequences = sequences_,
                     .max_positions = std::min(sequences_.max_positions, c.max_positions),
                     .kv_layer_stride = pool_.layer_stride() / dtype_bytes(kernels::activation_dtype(stream_.device())),
                     .adapter = adapter_,
                     .rank_rows = rank_rows_,
                     .tiles = tiles_},
                 arena_, stream_);
  model_.logits(logits, hidden,
                {.rows = {{.row_begin = 0, .rows = rows, .adapter = adapter_, .rank_rows = rank_rows_}},
                 .tiles = {},
                 .dropout = {}},
                arena_, stream_);
  kernels::decode_draw(state, logits, inv_temperature, stream_);
}

const lora::AdapterVersion* DecodeLoop::in_slot(const lora::AdapterVersion& adapter) {
  if (slot_source_ == adapter.weights && slot_.layout == adapter.layout) return &slot_;
  const size_t bytes = lora::weight_bytes(*adapter.layout, stream_.device());
  std::shared_ptr<const Buffer> memory = slot_.weights;
  if (memory == nullptr || memory->bytes() < bytes) {
    graphs_.clear();  // they contain its address
    memory = std::make_shared<const Buffer>(bytes, Buffer::Fill::none, stream_.device());
  }
  slot_source_ = nullptr;
  copy(memory->data(), adapter.weights->data(), bytes, stream_);
  slot_ = adapter;
  slot_.weights = std::move(memory);
  slot_source_ = adapter.weights;
  return &slot_;
}

void DecodeLoop::choose_adapters(std::span<const DecodeInput> inputs) {
  adapter_ = inputs.front().adapter;
  several_ = {};
  std::vector<lora::AdapterRows> runs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (runs.empty() || runs.back().adapter != inputs[i].adapter)
      runs.push_back({.row_begin = static_cast<int64_t>(i), .adapter = inputs[i].adapter});
    ++runs.back().rows;
  }
  if (runs.size() == 1) {
    if (adapter_) adapter_ = in_slot(*adapter_);
    return;
  }
  if (stack(runs)) return;
  adapter_ = nullptr;
  several_.tiles = lora::tiles_of(runs);
}

bool DecodeLoop::stack(std::span<const lora::AdapterRows> runs) {
  std::vector<const lora::AdapterVersion*> adapters;
  for (const lora::AdapterRows& run : runs) {
    if (!run.adapter || run.adapter->layout != runs.front().adapter->layout) return false;
    if (std::ranges::find(adapters, run.adapter) != adapters.end()) return false;  // its rows are apart
    adapters.push_back(run.adapter);
  }
  const std::shared_ptr<const lora::AdapterLayout>& layout = adapters.front()->layout;
  const int64_t places = lora::AdapterStack::places_for(adapters.size());
  if (!lora::AdapterStack::fits(*layout, places)) return false;
  lora::AdapterStack* const stack = stack_of(layout, places);
  if (!stack) return false;
  const std::optional<std::vector<int64_t>> found = stack->place(adapters, stream_);
  if (!found) return false;
  several_.rank_rows.resize(2 * static_cast<size_t>(places));
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto at = 2 * static_cast<size_t>((*found)[i]);
    several_.rank_rows[at] = static_cast<int32_t>(runs[i].row_begin);
    several_.rank_rows[at + 1] = static_cast<int32_t>(runs[i].row_begin + runs[i].rows);
  }
  adapter_ = &stack->version();
  return true;
}

lora::AdapterStack* DecodeLoop::stack_of(const std::shared_ptr<const lora::AdapterLayout>& layout, int64_t places) {
  constexpr int64_t kUnusedRuns = 256, kPause = 1024;
  auto found = stacks_.find(places);
  if (found != stacks_.end() && found->second.adapters.each() != layout) {
    // Policies that take turns would clear each other's graphs.
    if (runs_ - found->second.last_run < kUnusedRuns) return nullptr;
    graphs_.clear();  // they contain its address
    stacks_.erase(found);
    found = stacks_.end();
  }
  if (found == stacks_.end()) {
    if (runs_ < next_stack_) return nullptr;
    try {
      found = stacks_.try_emplace(places, lora::AdapterStack(layout, places, stream_)).first;
    } catch (const ResourceError&) {
      next_stack_ = runs_ + kPause;
      return nullptr;
    }
  }
  found->second.last_run = runs_;
  return &found->second.adapters;
}

StepGraphs::Key DecodeLoop::key_of(const DecodeShape& shape, float inv_temperature) const {
  StepGraphs::Key key{.shape = shape, .shared_spans = sequences_.num_shared_spans, .inv_temperature = inv_temperature};
  if (adapter_) key.adapter = {.layout = adapter_->layout};
  key.tiles = {.tiles = tiles_.num_tiles,
               .sites = static_cast<int64_t>(several_.tiles.sites.size()),
               .max_rank = tiles_.max_rank};
  return key;
}

void DecodeLoop::run(std::span<const DecodeInput> inputs, int64_t steps, float inv_temperature,
                     DecodeResults& results) {
  ++runs_;
  choose_adapters(inputs);
  int64_t positions = 1;
  for (const DecodeInput& input : inputs) positions = std::max<int64_t>(positions, input.position + steps);
  const DecodeShape shape = DecodeShape::rounded_up(static_cast<int64_t>(inputs.size()), positions);
  const kernels::DecodeState state = place(inputs, shape);
  const StepGraphs::Key key = key_of(shape, inv_temperature);
  int64_t done = 0;
  const Graph* graph = graphs_.find(key);
  if (!graph) {
    // The first step runs without recording: kernels choose their variants and allocate their scratch memory, which a
    // graph capture does not allow.
    step(state, inv_temperature);
    done = 1;
    const auto recorded = [&] {
      step(state, inv_temperature);
      if (while_recording_) while_recording_();
    };
    graph = graphs_.record(key, [&] { return Graph::record(stream_, recorded); });
  }
  for (; done < steps; ++done) {
    if (graph)
      graph->launch(stream_);
    else
      step(state, inv_temperature);
  }

  const auto count = static_cast<size_t>(steps * shape.rows);
  results.stride = shape.rows;
  results.tokens.resize(count);
  results.logprobs.resize(count);
  download(results.tokens.data(), state.drawn, count * sizeof(int32_t), stream_);
  download(results.logprobs.data(), state.logprobs, count * sizeof(float), stream_);
}

}  // namespace lockstep::rollout
