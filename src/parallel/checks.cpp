#include "parallel/checks.h"

#include <string>

#include "core/error.h"

namespace lockstep::parallel {

void require_root(int root, int size) {
  if (root >= 0 && root < size) return;
  throw ShapeError({.what = "a rank outside the group",
                    .where = "broadcast: root",
                    .got = std::to_string(root),
                    .wanted = "0 to " + std::to_string(size - 1)});
}

void require_gathered(size_t out, size_t mine, int size) {
  if (out == mine * static_cast<size_t>(size)) return;
  throw ShapeError({.what = "the output has no room for one piece of each rank",
                    .where = "all_gather",
                    .got = std::to_string(out) + " bytes",
                    .wanted = std::to_string(size) + " times " + std::to_string(mine)});
}

void require_exchanged(size_t out, size_t in, int size) {
  if (out == in && in % static_cast<size_t>(size) == 0) return;
  throw ShapeError({.what = "input and output are not one piece for each rank",
                    .where = "all_to_all",
                    .got = std::to_string(in) + " bytes in, " + std::to_string(out) + " out",
                    .wanted = "the same multiple of " + std::to_string(size)});
}

}  // namespace lockstep::parallel
