#include "rollout/local/decode_loop.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "core/transfer.h"
#include "kernels/key_spans.h"

namespace lockstep::rollout {

namespace {

constexpr int64_t kSpan = kernels::kKeySpan;

// Few enough sizes to record, close enough that padding is cheap: powers of two up to 16, then multiples of an eighth
// of the next power of two.
int64_t round_rows(int64_t rows) {
  if (rows <= 16) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  const int64_t step = std::max<int64_t>(8, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))) / 8);
  return (rows + step - 1) / step * step;
}

// Powers of two, but for the least: entries of no sequence fill them up.
size_t round_shared_spans(size_t count) {
  return count == 0 ? 0 : std::max<size_t>(16, std::bit_ceil(count));
}

// Appends arrays to one piece of memory that travels to the GPU at once.
class Staging {
 public:
  explicit Staging(std::vector<std::byte>& memory) : memory_(memory) { memory_.clear(); }

  template <class T>
  size_t add(std::span<const T> values) {
    const size_t at = (memory_.size() + 255) / 256 * 256;
    memory_.resize(at + values.size_bytes());
    std::memcpy(memory_.data() + at, values.data(), values.size_bytes());
    return at;
  }

 private:
  std::vector<std::byte>& memory_;
};

}  // namespace

DecodeLoop::DecodeLoop(const model::Model& model, BlockPool& pool, Stream& stream)
    : model_(model), pool_(pool), stream_(stream), arena_(stream.device()) {}

kernels::DecodeState DecodeLoop::place(std::span<const DecodeInput> inputs, int64_t rows, int64_t spans) {
  const auto count = static_cast<size_t>(rows);
  const int64_t blocks_each = spans * kSpan / kernels::kKvBlock;
  std::vector<int32_t> tokens(count), positions(count, 1), sequence_of_row(count);
  std::iota(sequence_of_row.begin(), sequence_of_row.end(), 0);
  std::vector<kernels::DeviceSequence> sequences(count);
  std::vector<kernels::SampleRow> samples(count);
  std::vector<void*> blocks(count * static_cast<size_t>(blocks_each), pool_.spare_memory());
  std::vector<kernels::AttentionSequence> running;
  for (size_t i = 0; i < count; ++i) {
    sequences[i] = {.row_begin = static_cast<int32_t>(i),
                    .rows = 1,
                    .first_position = 1,
                    .block_begin = static_cast<int32_t>(static_cast<int64_t>(i) * blocks_each)};
    if (i >= inputs.size()) continue;
    tokens[i] = inputs[i].token;
    positions[i] = sequences[i].first_position = inputs[i].position;
    samples[i] = inputs[i].sample;
    running.push_back({.rows = 1, .first_position = inputs[i].position, .blocks = inputs[i].blocks});
    // A sequence may hold blocks beyond these steps: those that were taken before another one found none.
    const auto used = std::min(inputs[i].blocks.size(), static_cast<size_t>(blocks_each));
    std::copy_n(inputs[i].blocks.begin(), used,
                blocks.begin() + static_cast<std::ptrdiff_t>(static_cast<int64_t>(i) * blocks_each));
  }
  kernels::KeySpans key_spans = kernels::shared_key_spans(running, model_.attention_shape(0));
  key_spans.shared.resize(round_shared_spans(key_spans.shared.size()));
  key_spans.first_own.resize(count);
  const auto active = static_cast<int32_t>(inputs.size());
  const int32_t step = 0;
  Staging staging(staged_);
  // The blocks come last: their number depends on the spans, and graphs keep the addresses of the others.
  const size_t at_step = staging.add(std::span(&step, 1)), at_active = staging.add(std::span(&active, 1));
  const size_t at_tokens = staging.add(std::span<const int32_t>(tokens));
  const size_t at_positions = staging.add(std::span<const int32_t>(positions));
  const size_t at_sequences = staging.add(std::span<const kernels::DeviceSequence>(sequences));
  const size_t at_samples = staging.add(std::span<const kernels::SampleRow>(samples));
  const size_t at_rows = staging.add(std::span<const int32_t>(sequence_of_row));
  const size_t at_shared = staging.add(std::span<const kernels::SharedSpan>(key_spans.shared));
  const size_t at_first_own = staging.add(std::span<const int32_t>(key_spans.first_own));
  const size_t at_tiles = staging.add(std::span<const kernels::LoraTile>(host_tiles_.tiles));
  const size_t at_sites = staging.add(std::span<const kernels::LoraSite>(host_tiles_.sites));
  const size_t at_blocks = staging.add(std::span<void* const>(blocks));
  const size_t result_bytes = static_cast<size_t>(DecodeLoop::kMostSteps * rows) * (sizeof(int32_t) + sizeof(float));
  const size_t span_bytes =
      static_cast<size_t>(kernels::span_scratch_floats(model_.attention_shape(0), rows, spans * kSpan)) * sizeof(float);
  if (state_.bytes() < staged_.size() || results_.bytes() < result_bytes || spans_.bytes() < span_bytes) {
    graphs_.clear();  // they name the old memory
    state_ = Buffer(2 * staged_.size(), Buffer::Fill::none, stream_.device());
    results_ = Buffer(2 * result_bytes, Buffer::Fill::none, stream_.device());
    spans_ = Buffer(2 * span_bytes, Buffer::Fill::none, stream_.device());
  }
  upload(state_.data(), staged_.data(), staged_.size(), stream_);
  zero(spans_.data(), span_bytes, stream_);  // every step leaves its counters at zero
  std::byte* const base = static_cast<std::byte*>(state_.data());
  const auto at = [&]<class T>(size_t offset, T*) { return reinterpret_cast<T*>(base + offset); };
  auto* const placed = at(at_sequences, static_cast<kernels::DeviceSequence*>(nullptr));
  const bool shares = !key_spans.shared.empty();
  sequences_ = {.sequences = placed,
                .blocks = at(at_blocks, static_cast<void**>(nullptr)),
                .sequence_of_row = at(at_rows, static_cast<int32_t*>(nullptr)),
                .num_sequences = rows,
                .max_positions = spans * kSpan,
                .span_scratch = static_cast<float*>(spans_.data()),
                .shared_spans = shares ? at(at_shared, static_cast<kernels::SharedSpan*>(nullptr)) : nullptr,
                .first_own_span = shares ? at(at_first_own, static_cast<int32_t*>(nullptr)) : nullptr,
                .num_shared_spans = static_cast<int64_t>(key_spans.shared.size())};
  tiles_ = host_tiles_.empty() ? kernels::LoraTiles()
                               : host_tiles_.on_device(at(at_tiles, static_cast<kernels::LoraTile*>(nullptr)),
                                                       at(at_sites, static_cast<kernels::LoraSite*>(nullptr)));
  auto* const drawn = static_cast<int32_t*>(results_.data());
  return {.tokens = at(at_tokens, static_cast<int32_t*>(nullptr)),
          .positions = at(at_positions, static_cast<int32_t*>(nullptr)),
          .sequences = placed,
          .rows = at(at_samples, static_cast<kernels::SampleRow*>(nullptr)),
          .num_rows = rows,
          .num_active = at(at_active, static_cast<int32_t*>(nullptr)),
          .step = at(at_step, static_cast<int32_t*>(nullptr)),
          .drawn = drawn,
          .logprobs = reinterpret_cast<float*>(drawn + DecodeLoop::kMostSteps * rows)};
}

void DecodeLoop::step(const kernels::DecodeState& state, int64_t spans, float inv_temperature) {
  const Arena::Scope scope(arena_);
  const model::ModelConfig& c = model_.config();
  const int64_t rows = state.num_rows, positions = spans * kSpan;
  const auto count = static_cast<size_t>(rows);
  const Tensor hidden = arena_.alloc({rows, c.width}, kernels::activation_dtype(stream_.device()));
  const Tensor logits = arena_.alloc({rows, c.vocab_size});
  model_.forward(hidden,
                 model::DecodeRows{
                     .tokens = std::span(state.tokens, count),
                     .positions = std::span(state.positions, count),
                     .sequences = sequences_,
                     .max_positions = std::min(positions, c.max_positions),
                     .kv_layer_stride = pool_.layer_stride() / dtype_bytes(kernels::activation_dtype(stream_.device())),
                     .adapter = adapter_,
                     .tiles = tiles_},
                 arena_, stream_);
  model_.logits(logits, hidden, arena_, stream_);
  kernels::decode_draw(state, logits, inv_temperature, stream_);
}

void DecodeLoop::choose_adapters(std::span<const DecodeInput> inputs) {
  adapter_ = inputs.front().adapter;
  host_tiles_ = {};
  std::vector<lora::AdapterRows> runs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (runs.empty() || runs.back().adapter != inputs[i].adapter)
      runs.push_back({.row_begin = static_cast<int64_t>(i), .adapter = inputs[i].adapter});
    ++runs.back().rows;
  }
  if (runs.size() == 1) return;
  adapter_ = nullptr;
  host_tiles_ = lora::tiles_of(runs);
}

void DecodeLoop::run(std::span<const DecodeInput> inputs, int64_t steps, float inv_temperature,
                     DecodeResults& results) {
  choose_adapters(inputs);
  int64_t positions = 1;
  for (const DecodeInput& input : inputs) positions = std::max<int64_t>(positions, input.position + steps);
  const auto spans = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>((positions + kSpan - 1) / kSpan)));
  const int64_t rows = round_rows(static_cast<int64_t>(inputs.size()));
  const kernels::DecodeState state = place(inputs, rows, spans);
  const StepGraphs::Key key{.rows = rows,
                            .spans = spans,
                            .weights = adapter_ ? adapter_->weights->data() : nullptr,
                            .layout = adapter_ ? adapter_->layout : nullptr,
                            .inv_temperature = inv_temperature,
                            .tiles = tiles_.num_tiles,
                            .sites = static_cast<int64_t>(host_tiles_.sites.size()),
                            .most_rank = tiles_.most_rank,
                            .shared_spans = sequences_.num_shared_spans};
  int64_t done = 0;
  const Graph* graph = graphs_.find(key);
  if (!graph) {
    // The first step runs as it is: kernels choose their variants and take their scratch memory, which a recording must
    // not do.
    step(state, spans, inv_temperature);
    done = 1;
    graph = graphs_.record(key, [&] { return Graph::record(stream_, [&] { step(state, spans, inv_temperature); }); });
  }
  for (; done < steps; ++done) {
    if (graph) {
      graph->launch(stream_);
      continue;
    }
    // Kernels of a step read where the rows stand before those launched ahead of them have ended. A graph begins when
    // all before it has; here a fill, which no kernel overlaps, stands between two steps. The counters are zero anyway.
    zero(spans_.data(), sizeof(float), stream_);
    step(state, spans, inv_temperature);
  }

  const auto count = static_cast<size_t>(steps * rows);
  results.stride = rows;
  results.tokens.resize(count);
  results.logprobs.resize(count);
  download(results.tokens.data(), state.drawn, count * sizeof(int32_t), stream_);
  download(results.logprobs.data(), state.logprobs, count * sizeof(float), stream_);
}

}  // namespace lockstep::rollout
