// What every transport checks about the arguments of a call before it moves data.
#pragma once

#include <cstddef>

namespace lockstep::parallel {

void require_root(int root, int size);                     // ShapeError
void require_gathered(size_t out, size_t mine, int size);  // ShapeError unless out is `size` times mine
void require_exchanged(size_t out, size_t in, int size);   // ShapeError unless both are `size` equal pieces

}  // namespace lockstep::parallel
