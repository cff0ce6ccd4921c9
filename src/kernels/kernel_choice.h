// How the kernel of a matmul is chosen on a GPU.
#pragma once

#include "core/stream.h"

namespace lockstep::kernels {

// fastest: at the first use of a shape its candidates are timed. first: they run once, for a check of their bits, and
// the first is taken; for tools under which time means nothing (compute-sanitizer).
enum class KernelChoice { fastest, first };

// For the shapes that the stream has not seen yet. Changes the speed and never a bit. On the CPU there is nothing to
// choose.
void choose_kernels(KernelChoice choice, Stream& stream);

// Whether kernels are chosen by timing them, so that other work beside them could mislead the choice.
bool chooses_by_time(const Stream& stream);

// For tests: from now on the process's streams use what every supported GPU has: mma.sync, 99 KB of shared memory. The
// bits are the same.
void imitate_least_gpu(bool on);

}  // namespace lockstep::kernels
