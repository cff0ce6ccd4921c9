// The inputs of a run of decode steps: assembled on the host, sent to the GPU in one copy, together with the place of
// each array in that copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/memory.h"
#include "kernels/attention.h"
#include "kernels/key_spans.h"
#include "kernels/sample.h"
#include "lora/adapter_tiles.h"

namespace lockstep::rollout {

// One running sequence: its next input token and what precedes it.
struct DecodeInput {
  int32_t token = 0, position = 0;
  std::span<void* const> blocks;                  // for every position of the coming steps
  kernels::SampleRow sample;                      // how the token after `position` is drawn
  const lora::AdapterVersion* adapter = nullptr;  // nullptr: base
};

// The size of a step, rounded up so that few different sizes occur.
struct DecodeShape {
  int64_t rows = 0;
  int64_t spans = 0;  // of kernels::kKeySpan positions each: the most that a row may have before it

  // For a step of so many rows, none of which has more positions.
  static DecodeShape rounded_up(int64_t rows, int64_t positions);
  int64_t positions() const { return spans * kernels::kKeySpan; }
  int64_t blocks_per_row() const { return positions() / kernels::kKvBlock; }
  auto operator<=>(const DecodeShape&) const = default;
};

// One entry per row unless stated otherwise. Rows beyond the inputs are padding: each is a sequence of one token in
// the spare block.
struct DecodeBatch {
  DecodeBatch(std::span<const DecodeInput> inputs, const DecodeShape& shape, const kernels::AttentionShape& attention,
              void* spare_block);

  int32_t step = 0;        // steps taken
  int32_t num_active = 0;  // rows that are not padding
  std::vector<int32_t> tokens, positions, sequence_of_row;
  std::vector<kernels::DeviceSequence> sequences;
  std::vector<kernels::SampleRow> samples;
  std::vector<kernels::SharedSpan> shared_spans;  // padded to a power of two; empty: no two rows share keys
  std::vector<int32_t> first_own_span;
  std::vector<void*> blocks;  // [rows, blocks_per_row]
};

// An array within the memory that holds the whole batch.
template <class T>
struct PlacedArray {
  size_t offset = 0;  // in bytes
  T* in(const Buffer& memory) const { return reinterpret_cast<T*>(static_cast<std::byte*>(memory.data()) + offset); }
};

struct PlacedBatch {
  PlacedArray<int32_t> step, num_active, tokens, positions;
  PlacedArray<kernels::DeviceSequence> sequences;
  PlacedArray<kernels::SampleRow> samples;
  PlacedArray<int32_t> sequence_of_row;
  PlacedArray<kernels::SharedSpan> shared_spans;
  PlacedArray<int32_t> first_own_span;
  PlacedArray<kernels::LoraTile> tiles;
  PlacedArray<kernels::LoraSite> sites;
  PlacedArray<int32_t> rank_rows;
  // Placed last: their number depends on the spans, and a graph keeps the addresses of all other arrays.
  PlacedArray<void*> blocks;
};

// How a batch of several adapters finds them: by tiles of rows, by the ranks of a stack (kernels::RankRows), or
// neither.
struct BatchAdapters {
  lora::AdapterTiles tiles;
  std::vector<int32_t> rank_rows;  // begin and end of the rows of each place of the stack
};

// Writes the batch and what finds its adapters to `memory`. All places but that of the blocks depend only on the
// numbers of rows, shared spans, tiles, sites and places.
PlacedBatch place_batch(const DecodeBatch& batch, const BatchAdapters& adapters, std::vector<std::byte>& memory);

}  // namespace lockstep::rollout
