// How a matmul is cut into tasks: parts of its rows times parts of its column strips.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

struct Span {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Part `index` of [0, total) cut into `parts` pieces whose sizes differ by at most one.
inline Span even_part(int64_t total, int64_t parts, int64_t index) {
  return {total * index / parts, total * (index + 1) / parts};
}

// What a matmul costs, in units of about one cycle per step of depth.
struct MatmulWork {
  int64_t rows = 0, strips = 0, depth = 0;
  int64_t tile_rows = 1;     // rows of a full tile
  int64_t row_cycles = 2;    // one row of one strip
  int64_t strip_cycles = 0;  // making one strip ready (transposing it, fetching it from memory), once per part of rows
};

struct Grid {
  int64_t row_parts = 1, strip_parts = 1;
  int64_t tasks() const { return row_parts * strip_parts; }
  // The first strip of the task that the worker of this one is likely to take next; -1: none.
  int64_t after(int64_t strips, int64_t task, int64_t threads) const {
    const int64_t next = task + threads;
    return next < tasks() ? even_part(strips, strip_parts, next / row_parts).begin : -1;
  }
};

// The cheapest cut for `threads` workers. A matmul that is over sooner than the workers could be told stays whole.
Grid choose_grid(const MatmulWork& work, int threads);

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace lockstep::kernels
