// The inputs of decode steps on the host: sizes that few graphs serve, padding, and places that graphs may keep.
#include "rollout/local/decode_batch.h"

#include <gtest/gtest.h>

namespace lockstep::rollout {
namespace {

constexpr kernels::AttentionShape kShape{.heads = 2, .kv_heads = 1, .head_dim = 8};

// Inputs whose sequences have blocks of their own.
struct Inputs {
  explicit Inputs(size_t count, int32_t position = 5) : memory(count * kBlocks), blocks(count * kBlocks) {
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = &memory[i];
    for (size_t i = 0; i < count; ++i)
      all.push_back({.token = static_cast<int32_t>(10 + i),
                     .position = position,
                     .blocks = std::span(blocks).subspan(i * kBlocks, kBlocks)});
  }
  static constexpr size_t kBlocks = 64;
  std::vector<char> memory;
  std::vector<void*> blocks;
  std::vector<DecodeInput> all;
};

TEST(DecodeShape, IsRoundedUpToFewSizes) {
  for (const auto& [rows, wanted] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 4}, {16, 16}, {17, 24}, {33, 40}, {100, 112}})
    EXPECT_EQ(DecodeShape::rounded_up(rows, 1).rows, wanted);
  constexpr int64_t kSpan = kernels::kKeySpan;
  for (const auto& [positions, spans] :
       {std::pair<int64_t, int64_t>{1, 1}, {kSpan, 1}, {kSpan + 1, 2}, {2 * kSpan + 1, 4}, {5 * kSpan, 8}}) {
    const DecodeShape shape = DecodeShape::rounded_up(1, positions);
    EXPECT_EQ(shape.spans, spans);
    EXPECT_GE(shape.positions(), positions);
  }
}

TEST(DecodeBatch, RowsBeyondTheInputsAreOneTokenInTheSpareBlock) {
  Inputs inputs(3);
  char spare = 0;
  const DecodeShape shape = DecodeShape::rounded_up(3, 6);
  const DecodeBatch batch(inputs.all, shape, kShape, &spare);
  EXPECT_EQ(batch.num_active, 3);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{10, 11, 12, 0}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{5, 5, 5, 1}));
  ASSERT_EQ(batch.blocks.size(), static_cast<size_t>(4 * shape.blocks_per_row()));
  for (size_t row = 0; row < 4; ++row) {
    const kernels::DeviceSequence& sequence = batch.sequences[row];
    EXPECT_EQ(sequence.row_begin, static_cast<int32_t>(row));
    EXPECT_EQ(sequence.first_position, batch.positions[row]);
    EXPECT_EQ(sequence.block_begin, static_cast<int32_t>(static_cast<int64_t>(row) * shape.blocks_per_row()));
    EXPECT_EQ(batch.blocks[static_cast<size_t>(sequence.block_begin)], row < 3 ? inputs.all[row].blocks[0] : &spare);
  }
}

// A graph of few spans is launched again when rows have grown: what it names lies where it was.
TEST(PlacedBatch, OnlyTheBlocksDependOnTheSpans) {
  Inputs inputs(3);
  char spare = 0;
  const auto place = [&](int64_t spans, std::vector<std::byte>& memory) {
    const DecodeBatch batch(inputs.all, {.rows = 4, .spans = spans}, kShape, &spare);
    const PlacedBatch placed = place_batch(batch, {}, memory);
    EXPECT_EQ(placed.blocks.offset + batch.blocks.size() * sizeof(void*), memory.size());
    return placed;
  };
  std::vector<std::byte> small, large;
  const PlacedBatch a = place(1, small), b = place(2, large);
  EXPECT_GT(large.size(), small.size());
  const auto offsets = [](const PlacedBatch& p) {
    return std::vector<size_t>{
        p.step.offset,           p.num_active.offset, p.tokens.offset,          p.positions.offset,
        p.sequences.offset,      p.samples.offset,    p.sequence_of_row.offset, p.shared_spans.offset,
        p.first_own_span.offset, p.tiles.offset,      p.sites.offset,           p.blocks.offset};
  };
  EXPECT_EQ(offsets(a), offsets(b));
  for (const size_t offset : offsets(a)) EXPECT_EQ(offset % 256, 0u);
}

TEST(PlacedBatch, ArraysAreFoundWhereTheyWerePut) {
  Inputs inputs(5, 40);
  char spare = 0;
  const DecodeBatch batch(inputs.all, DecodeShape::rounded_up(5, 41), kShape, &spare);
  std::vector<std::byte> bytes;
  const PlacedBatch placed = place_batch(batch, {}, bytes);
  const Buffer memory(bytes.size());
  std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(memory.data()));
  EXPECT_EQ(*placed.step.in(memory), 0);
  EXPECT_EQ(*placed.num_active.in(memory), 5);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    EXPECT_EQ(placed.tokens.in(memory)[i], batch.tokens[i]);
    EXPECT_EQ(placed.positions.in(memory)[i], batch.positions[i]);
    EXPECT_EQ(placed.sequence_of_row.in(memory)[i], static_cast<int32_t>(i));
    EXPECT_EQ(placed.sequences.in(memory)[i].block_begin, batch.sequences[i].block_begin);
  }
  for (size_t i = 0; i < batch.blocks.size(); ++i) EXPECT_EQ(placed.blocks.in(memory)[i], batch.blocks[i]);
}

}  // namespace
}  // namespace lockstep::rollout
