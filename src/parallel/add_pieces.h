// The sum over ranks of one slice of an array, from pieces that all lie on this rank's device.
#pragma once

#include <cstdint>
#include <vector>

#include "core/stream.h"

namespace lockstep::parallel {

// out[i] = the binary tree over the ranks' pieces, as tree_sum has it; ranks that are not present are absent.
//   out     [count] f32                                     may be `own`
//   pieces  [ranks][stride] f32                             overwritten
//   own     [count] f32, this rank's piece; `rank` is it    if it is present; its row of `pieces` is not read
// Queued on the stream, whose device holds all of it. On the CPU the stride is a multiple of 4096.
struct Pieces {
  float* all = nullptr;
  int64_t stride = 0;
  const float* own = nullptr;
  int rank = 0;
  std::vector<bool> present;
};
void add_pieces(float* out, int64_t count, const Pieces& pieces, Stream& stream);

namespace cuda {
void add_pieces(float* out, int64_t count, const Pieces& pieces, void* stream);
}
namespace cpu {
// Sums of one block; the sum lies where the first rank that is present has its block.
void add_block(float* pieces, int64_t stride, int64_t block, const std::vector<bool>& present);
inline constexpr int64_t kBlock = 4096;  // floats
}  // namespace cpu

}  // namespace lockstep::parallel
