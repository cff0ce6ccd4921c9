#include <algorithm>
#include <atomic>

#include "parallel/checks.h"
#include "parallel/group.h"

namespace lockstep::parallel {

namespace {

class Solo final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void broadcast(std::span<std::byte>, int root) override { require_root(root, 1); }
  void all_gather(std::span<std::byte> out, std::span<const std::byte> mine) override {
    require_gathered(out.size(), mine.size(), 1);
    std::ranges::copy(mine, out.begin());
  }
  void all_to_all(std::span<std::byte> out, std::span<const std::byte> in) override {
    require_exchanged(out.size(), in.size(), 1);
    std::ranges::copy(in, out.begin());
  }
  void barrier() override {}
  void fail(const Fault&, int) noexcept override {}
  void check() override {}
  bool failed() const noexcept override { return false; }
  void interrupt() noexcept override { interrupted_->store(true); }
  bool interrupted() const noexcept override { return interrupted_->load(); }
  std::unique_ptr<Group> second() override { return std::make_unique<Solo>(*this); }

 private:
  std::shared_ptr<std::atomic<bool>> interrupted_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

std::unique_ptr<Group> solo() {
  return std::make_unique<Solo>();
}

}  // namespace lockstep::parallel
