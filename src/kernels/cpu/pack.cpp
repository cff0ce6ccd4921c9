#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/cpu/matrix_ops.h"
#include "kernels/cpu/split.h"

namespace lockstep::kernels::cpu {
namespace {

// Moves storage words without interpreting them, so that NaN payloads and signed zeros survive.
constexpr int64_t kBlock = 32;  // columns moved at a time: a block of a panel stays in the first cache

template <class Word>
using PanelRows = std::array<const Word*, kPanel>;  // nullptr past the last row

template <class Word>
void fill_panel(const PanelRows<Word>& rows, int64_t depth, Word* panel) {
  for (int64_t begin = 0; begin < depth; begin += kBlock) {
    const int64_t end = std::min(depth, begin + kBlock);
    for (int64_t n = 0; n < kPanel; ++n)
      for (int64_t k = begin; k < end; ++k) panel[k * kPanel + n] = rows[n] ? rows[n][k] : Word{0};
  }
}

// Rows [begin, end) of the stacked parts. Those in files are read into `room`, which has as many rows.
template <class Word>
PanelRows<Word> panel_rows(std::span<const NamedTensor* const> parts, int64_t begin, int64_t end, Word* room) {
  PanelRows<Word> rows{};
  auto next = rows.begin();
  for (const NamedTensor* part : parts) {
    const ConstTensor& w = part->tensor;
    const int64_t depth = w[1], first = std::max<int64_t>(0, begin), count = std::min(w[0], end) - first;
    if (count > 0) {
      const Word* from = room;
      if (part->file == nullptr) {
        from = static_cast<const Word*>(w.data) + first * w.row_stride;
      } else {
        part->read(room, static_cast<size_t>(first * depth) * sizeof(Word),
                   static_cast<size_t>(count * depth) * sizeof(Word));
        room += count * depth;
      }
      for (int64_t n = 0; n < count; ++n) *next++ = from + n * w.row_stride;
    }
    begin -= w[0], end -= w[0];
  }
  return rows;
}

template <class Word>
void pack_words(PackedWeight& weight, std::span<const NamedTensor* const> parts, Stream& stream) {
  const bool from_files = std::ranges::any_of(parts, [](const NamedTensor* part) { return part->file != nullptr; });
  const size_t room_bytes = from_files ? static_cast<size_t>(kPanel * weight.depth) * sizeof(Word) : 0;
  auto* const panels = static_cast<Word*>(weight.panels.data());
  stream.parallel(ceil_div(weight.rows, kPanel), [&](int64_t p, int worker) {
    auto* const room = from_files ? static_cast<Word*>(stream.scratch(worker, room_bytes)) : nullptr;
    const int64_t begin = p * kPanel, end = std::min(weight.rows, begin + kPanel);
    fill_panel(panel_rows(parts, begin, end, room), weight.depth, panels + p * kPanel * weight.depth);
  });
}

template <class Word>
const Word* row_of(const PackedWeight& weight, int64_t n) {
  return static_cast<const Word*>(weight.panels.data()) + n / kPanel * kPanel * weight.depth + n % kPanel;
}

template <class Word>
void unpack_words(Tensor out, const PackedWeight& weight, int64_t begin, int64_t end, Stream& stream) {
  auto* const to = static_cast<Word*>(out.data);
  const int64_t first = begin / kPanel;
  stream.parallel(ceil_div(end, kPanel) - first, [&](int64_t index, int) {
    const int64_t from_row = std::max(begin, (first + index) * kPanel);
    const int64_t to_row = std::min(end, (first + index + 1) * kPanel);
    for (int64_t block = 0; block < weight.depth; block += kBlock) {
      const int64_t last = std::min(weight.depth, block + kBlock);
      for (int64_t n = from_row; n < to_row; ++n) {
        const Word* const row = row_of<Word>(weight, n);
        for (int64_t k = block; k < last; ++k) to[(n - begin) * out.row_stride + k] = row[k * kPanel];
      }
    }
  });
}

template <class Stored>
float widen(Stored x) {
  if constexpr (std::is_same_v<Stored, float>)
    return x;
  else
    return to_f32(x);
}

template <class Stored>
void widen_values(float* to, const PackedWeight& weight, int64_t panel, int64_t begin, int64_t end) {
  const auto* const from = static_cast<const Stored*>(weight.panels.data()) + (panel * weight.depth + begin) * kPanel;
  for (int64_t i = 0; i < (end - begin) * kPanel; ++i) to[i] = widen(from[i]);
}

template <class Stored>
void gather_rows(Tensor y, const PackedWeight& weight, std::span<const int32_t> ids, Stream& stream) {
  constexpr int64_t kRowsPerTask = 8;
  const auto count = static_cast<int64_t>(ids.size());
  stream.parallel(ceil_div(count, kRowsPerTask), [&](int64_t task, int) {
    for (int64_t t = task * kRowsPerTask; t < std::min(count, (task + 1) * kRowsPerTask); ++t) {
      const Stored* const row = row_of<Stored>(weight, ids[static_cast<size_t>(t)]);
      float* const to = y.row(t);
      for (int64_t k = 0; k < weight.depth; ++k) to[k] = widen(row[k * kPanel]);
    }
  });
}

}  // namespace

void pack_panels(PackedWeight& weight, std::span<const NamedTensor* const> parts, Stream& stream) {
  switch (weight.format) {
    case WeightFormat::f32: return pack_words<uint32_t>(weight, parts, stream);
    case WeightFormat::bf16:
    case WeightFormat::f16: return pack_words<uint16_t>(weight, parts, stream);
  }
}

void unpack_rows(Tensor out, const PackedWeight& weight, int64_t begin, int64_t end, Stream& stream) {
  switch (weight.format) {
    case WeightFormat::f32: return unpack_words<uint32_t>(out, weight, begin, end, stream);
    case WeightFormat::bf16:
    case WeightFormat::f16: return unpack_words<uint16_t>(out, weight, begin, end, stream);
  }
}

void embedding_gather(Tensor y, const PackedWeight& weight, std::span<const int32_t> ids, Stream& stream) {
  switch (weight.format) {
    case WeightFormat::bf16: return gather_rows<BFloat16>(y, weight, ids, stream);
    case WeightFormat::f16: return gather_rows<Float16>(y, weight, ids, stream);
    case WeightFormat::f32: return gather_rows<float>(y, weight, ids, stream);
  }
}

void widen_panel(float* to, const PackedWeight& weight, int64_t panel, int64_t begin, int64_t end) {
  switch (weight.format) {
    case WeightFormat::bf16: return widen_values<BFloat16>(to, weight, panel, begin, end);
    case WeightFormat::f16: return widen_values<Float16>(to, weight, panel, begin, end);
    case WeightFormat::f32: return widen_values<float>(to, weight, panel, begin, end);
  }
}

}  // namespace lockstep::kernels::cpu
