#include "kernels/attention_checks.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace lockstep::kernels {

void require_shape(const AttentionShape& shape, const char* op) {
  if (shape.heads < 1 || shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0 || shape.head_dim < 1 ||
      shape.window < 0)
    throw ShapeError({.what = "impossible attention shape",
                      .where = op,
                      .got = std::to_string(shape.heads) + " heads, " + std::to_string(shape.kv_heads) +
                             " kv heads, head_dim " + std::to_string(shape.head_dim) + ", window " +
                             std::to_string(shape.window),
                      .wanted = "heads a multiple of kv heads, head_dim at least 1, window at least 0"});
}

void require_sequences(std::span<const AttentionSequence> sequences, int64_t rows, const char* op) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    const AttentionSequence& s = sequences[i];
    const auto where = [&] { return std::string(op) + ": sequence " + std::to_string(i); };
    if (s.row_begin < 0 || s.rows < 0 || s.row_begin + s.rows > rows || s.first_position < 0)
      throw ShapeError({.what = "sequence outside the rows",
                        .where = where(),
                        .got = "rows " + std::to_string(s.row_begin) + " .. " + std::to_string(s.row_begin + s.rows) +
                               " at position " + std::to_string(s.first_position),
                        .wanted = "within " + std::to_string(rows) + " rows"});
    const int64_t blocks = (s.first_position + s.rows + kKvBlock - 1) / kKvBlock;
    if (s.rows > 0 && static_cast<int64_t>(s.blocks.size()) < blocks)
      throw ShapeError({.what = "sequence has too few blocks of keys and values",
                        .where = where(),
                        .got = std::to_string(s.blocks.size()),
                        .wanted = std::to_string(blocks)});
  }
}

size_t count_followers(std::span<const AttentionSequence> sequences, size_t index) {
  const AttentionSequence& first = sequences[index];
  size_t count = 0;
  if (first.first_position != 0 || first.blocks.empty()) return 0;
  for (size_t i = index + 1; i < sequences.size(); ++i, ++count)
    if (sequences[i].first_position == 0 || sequences[i].blocks[0] != first.blocks[0]) break;
  return count;
}

void require_followers(std::span<const AttentionSequence> sequences, const char* op) {
  size_t followed = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const AttentionSequence &s = sequences[i], &leader = sequences[followed];
    if (s.first_position == 0) followed = i;
    if (s.first_position == 0) continue;
    const auto shared = static_cast<size_t>(s.first_position / kKvBlock);
    const bool is_whole =
        s.rows > 0 && s.first_position % kKvBlock == 0 && s.first_position <= leader.rows && leader.first_position == 0;
    const bool is_alike = i == followed + 1 || s.first_position == sequences[followed + 1].first_position;
    if (!is_whole || !is_alike || !std::ranges::equal(s.blocks.first(shared), leader.blocks.first(shared)))
      throw ShapeError({.what = "gradients need whole sequences, or the one whose first positions a sequence shares",
                        .where = std::string(op) + ": sequence " + std::to_string(i),
                        .got = "first position " + std::to_string(s.first_position),
                        .wanted = "0, or whole blocks of the last sequence before it that begins at 0"});
  }
}

void require_head_dim(int64_t head_dim, Device device) {
  if (device == Device::cpu || (head_dim % 16 == 0 && head_dim <= kMaxGpuHeadDim)) return;
  throw ConfigError({.what = "a GPU does not run attention of this head_dim",
                     .where = "head_dim",
                     .got = std::to_string(head_dim),
                     .wanted = "a multiple of 16 up to " + std::to_string(kMaxGpuHeadDim),
                     .attempt = "StreamOptions::device cpu"});
}

}  // namespace lockstep::kernels
