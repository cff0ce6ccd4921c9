#include <algorithm>

#include "core/error.h"
#include "parallel/group.h"

namespace lockstep::parallel {

namespace {
class Solo final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void broadcast(std::span<std::byte>, int root) override {
    if (root != 0)
      throw ShapeError({.what = "broadcast from a rank outside the group", .got = std::to_string(root), .wanted = "0"});
  }
  void all_reduce(std::span<float>) override {}
  void all_gather(std::span<std::byte> out, std::span<const std::byte> mine) override {
    if (out.size() != mine.size())
      throw ShapeError({.what = "all_gather of a group of one needs equal sizes",
                        .got = std::to_string(out.size()),
                        .wanted = std::to_string(mine.size())});
    std::copy(mine.begin(), mine.end(), out.begin());
  }
  void barrier(std::chrono::milliseconds) override {}
};
}  // namespace

std::unique_ptr<Group> solo() {
  return std::make_unique<Solo>();
}

}  // namespace lockstep::parallel
