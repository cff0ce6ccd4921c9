#include "kernels/rope.h"

#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/transfer.h"
#include "kernels/cpu/row_ops.h"

namespace lockstep::kernels {

RopeTable make_rope_table(std::span<const float> inv_freq, int64_t positions, float scale, Stream& stream) {
  RopeTable table{.positions = positions, .half = static_cast<int64_t>(inv_freq.size()), .values = {}};
  Buffer host(static_cast<size_t>(2 * positions * table.half) * sizeof(float), Buffer::Fill::none);
  float* cosine = host.f32();
  float* sine = cosine + positions * table.half;
  for (int64_t position = 0; position < positions; ++position)
    for (float frequency : inv_freq) {
      const float angle = static_cast<float>(position) * frequency;
      *cosine++ = static_cast<float>(std::cos(static_cast<double>(angle))) * scale;
      *sine++ = static_cast<float>(std::sin(static_cast<double>(angle))) * scale;
    }
  if (stream.device() == Device::cpu)
    table.values = std::move(host);
  else
    table.values = device_copy(host.data(), host.bytes(), stream);
  return table;
}

void rope(Tensor x, int64_t heads, std::span<const int32_t> positions, const RopeTable& table, int direction,
          Stream& stream) {
  if (x.rank != 2 || heads < 0 || x.shape[1] < heads * 2 * table.half)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = "rope: x",
                      .got = shape_text(x),
                      .wanted = "f32 [T, >= " + std::to_string(heads * 2 * table.half) + "]"});
  require_f32(x, {x.shape[0], x.shape[1]}, "rope", "x");
  if (static_cast<int64_t>(positions.size()) != x.shape[0])
    throw ShapeError({.what = "one position per row",
                      .where = "rope: positions",
                      .got = std::to_string(positions.size()),
                      .wanted = std::to_string(x.shape[0])});
  for (int32_t position : positions)
    if (position < 0 || position >= table.positions)
      throw ShapeError({.what = "position outside the table",
                        .where = "rope: positions",
                        .got = std::to_string(position),
                        .wanted = "0 .. " + std::to_string(table.positions - 1),
                        .attempt = "build a longer table"});
  if (direction != 1 && direction != -1)
    throw ShapeError({.what = "direction is +1 or -1", .where = "rope: direction", .got = std::to_string(direction)});
  cpu::rope(x, heads, positions, table, direction, stream);
}

}  // namespace lockstep::kernels
