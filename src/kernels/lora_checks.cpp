#include "kernels/lora_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/error.h"
#include "kernels/kernels.h"

namespace lockstep::kernels {

void require_h(const ConstTensor& h, int64_t rows, std::span<const LoraPair> pairs, const char* op,
               const Stream& stream) {
  require_tensor(h, activation_dtype(stream.device()), {rows, total_rank(pairs)}, op, "h");
}

void require_pairs(std::span<const LoraPair> pairs, const char* op, const Stream& stream) {
  const DType dtype = activation_dtype(stream.device());
  const int64_t most = max_lora_rank(stream.device());
  for (const LoraPair& pair : pairs) {
    if (pair.a.rank != 2 || pair.b.rank != 2 || pair.rank() < 1 || pair.rank() > most)
      throw ShapeError(
          {.what = "a LoRA pair has impossible factors",
           .where = op,
           .got = shape_text(pair.a) + " and " + shape_text(pair.b),
           .wanted = "[in, rank] (on a GPU [rank, in]) and [rank, out], rank at least 1, on a GPU at most " +
                     std::to_string(kMaxGpuRank)});
    const RankRows& rows = pair.rank_rows;
    if (rows.rows != pairs.front().rank_rows.rows || rows.adapters < 1 ||
        (rows.rows != nullptr && pair.rank() % (16 * rows.adapters) != 0))
      throw ShapeError({.what = "adapters that share a pair have impossible ranks",
                        .where = op,
                        .got = fmt::format("rank {} of {} adapters", pair.rank(), rows.adapters),
                        .wanted = "a multiple of 16 for each, and the same rows in all pairs"});
    if (stream.device() == Device::cuda)
      require_tensor(pair.a, dtype, {pair.rank(), pair.a[1]}, op, "a");
    else
      require_tensor(pair.a, dtype, {pair.a[0], pair.rank()}, op, "a");
    require_tensor(pair.b, dtype, {pair.rank(), pair.b[1]}, op, "b");
  }
}

void require_input(const ConstTensor& x, std::span<const LoraPair> pairs, const char* op, const Stream& stream) {
  for (const LoraPair& pair : pairs)
    require_tensor(x, activation_dtype(stream.device()), {x.shape[0], pair.in()}, op, "x");
}

void require_output(const ConstTensor& y, std::span<const LoraPair> pairs, const char* op, const Stream& stream) {
  int64_t width = 0;
  for (const LoraPair& pair : pairs) width = std::max(width, pair.out_begin + pair.b[1]);
  const bool is_typed = y.dtype == activation_dtype(stream.device()) || y.dtype == DType::f32;
  if (y.rank == 2 && is_typed && y[1] >= width) return;
  throw ShapeError({.what = "op argument has the wrong shape",
                    .where = std::string(op) + ": y",
                    .got = shape_text(y),
                    .wanted = "at least " + std::to_string(width) + " columns of activations, or of f32"});
}

void require_tiles(const LoraTiles& tiles, int64_t site, const ConstTensor& h, const char* op, const Stream& stream) {
  if (stream.device() == Device::cpu) throw DeviceError({.what = std::string(op) + " is a GPU's"});
  if (tiles.num_tiles < 1 || tiles.max_rank < 16 || tiles.max_rank % 16 != 0 || tiles.max_rank > kMaxGpuRank ||
      site < 0 || site >= tiles.num_sites)
    throw ShapeError({.what = "impossible tiles of adapter rows",
                      .where = op,
                      .got = std::to_string(tiles.num_tiles) + " tiles, rank " + std::to_string(tiles.max_rank) +
                             ", site " + std::to_string(site)});
  require_tensor(h, activation_dtype(stream.device()), {h.shape[0], tiles.h_columns()}, op, "h");
}

void require_delta(const ConstTensor& y, const LoraDelta& delta, const char* op, const Stream& stream) {
  if (stream.device() == Device::cpu)
    throw DeviceError({.what = "an adapter's part that is still to be added is a GPU's", .where = op});
  if (delta.pairs.empty()) return require_tiles(delta.tiles, delta.site, delta.h, op, stream);
  require_pairs(delta.pairs, op, stream);
  require_h(delta.h, y.shape[0], delta.pairs, op, stream);
  require_output(y, delta.pairs, op, stream);
}

}  // namespace lockstep::kernels
