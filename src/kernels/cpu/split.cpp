#include "kernels/cpu/split.h"

#include <algorithm>

namespace lockstep::kernels {
namespace {

// Handing work to the other threads and waiting for them costs a few microseconds.
constexpr int64_t kWorthSharingCycles = 24000;
// A tile of few rows waits for its own chains rather than for the multipliers.
constexpr int64_t kShortestTileCycles = 5;

int64_t part_cycles(const MatmulWork& work, int64_t rows, int64_t strips) {
  const int64_t tiles = ceil_div(rows, work.tile_rows);
  const int64_t compute = std::max(rows * work.row_cycles + tiles, tiles * kShortestTileCycles);
  return strips * (compute + work.strip_cycles);
}

}  // namespace

Grid choose_grid(const MatmulWork& work, int threads) {
  Grid best;
  if (threads < 2 || part_cycles(work, work.rows, work.strips) * work.depth < kWorthSharingCycles) return best;
  int64_t best_cycles = part_cycles(work, work.rows, work.strips);
  const int64_t max_row_parts = std::min<int64_t>(ceil_div(work.rows, work.tile_rows), threads);
  for (int64_t row_parts = 1; row_parts <= max_row_parts; ++row_parts) {
    // More tasks than threads even out what other work on the machine disturbs.
    for (int64_t waves : {1, 2, 4}) {
      const Grid grid{row_parts, std::clamp<int64_t>(ceil_div(threads * waves, row_parts), 1, work.strips)};
      const int64_t cycles = ceil_div(grid.tasks(), threads) *
                             part_cycles(work, ceil_div(work.rows, row_parts), ceil_div(work.strips, grid.strip_parts));
      if (cycles <= best_cycles) {
        best_cycles = cycles;
        best = grid;
      }
    }
  }
  return best;
}

}  // namespace lockstep::kernels
