// How a run of several ranks ends: the group hears of it before rank 0 saves, and every rank calls an interrupt so.
#include <atomic>

#include "recipes/ranks_fixture.h"

namespace lockstep::recipes {
namespace {

// A group whose calls of fail and check the test sees.
class WatchedGroup : public parallel::Group {
 public:
  WatchedGroup(std::unique_ptr<parallel::Group> group, std::function<void()> failing, std::function<void()> checking)
      : group_(std::move(group)), failing_(std::move(failing)), checking_(std::move(checking)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void broadcast(std::span<std::byte> bytes, int root) override { group_->broadcast(bytes, root); }
  void all_gather(std::span<std::byte> out, std::span<const std::byte> mine) override { group_->all_gather(out, mine); }
  void all_to_all(std::span<std::byte> out, std::span<const std::byte> in) override { group_->all_to_all(out, in); }
  void barrier() override { group_->barrier(); }
  void fail(const Fault& fault, int exit_code) noexcept override {
    failing_();
    group_->fail(fault, exit_code);
  }
  void check() override {
    checking_();
    group_->check();
  }
  bool failed() const noexcept override { return group_->failed(); }
  void interrupt() noexcept override { group_->interrupt(); }
  bool interrupted() const noexcept override { return group_->interrupted(); }
  std::unique_ptr<parallel::Group> second() override { return group_->second(); }

 private:
  const std::unique_ptr<parallel::Group> group_;
  const std::function<void()> failing_, checking_;
};

class RanksEnd : public RanksOfThreads {
 protected:
  void watch(Control& control, std::function<void()> failing, std::function<void(parallel::Group&)> checking = {}) {
    control.join = [join = control.join, failing, checking](const parallel::Identity& identity) {
      std::unique_ptr<parallel::Group> group = join(identity);
      parallel::Group& inner = *group;
      return std::make_unique<WatchedGroup>(std::move(group), failing, [checking, &inner] {
        if (checking) checking(inner);
      });
    };
  }
  bool is_saved(const std::string& save) const {
    return !checkpoint::saved_iterations((dir_.path() / save).string()).empty();
  }
  RlOptions unsaved(const std::string& save) {
    RlOptions options = rl(save);
    options.num_rollout = 4;
    options.save.save_interval = 0;
    return options;
  }
};

// A group waits a few seconds for a rank that has not heard of its end; a save may take longer.
TEST_F(RanksEnd, TheGroupHearsOfAnInterruptBeforeRankZeroSaves) {
  std::optional<bool> saved_before;
  std::atomic<int> asked{0};
  run_on(2, unsaved("interrupted"), run_rl, [&](int rank, Control& control) {
    control.interrupted = [&] { return ++asked > 60; };
    if (rank == 0)
      watch(control, [&] {
        if (!saved_before) saved_before = is_saved("interrupted");
      });
  });
  EXPECT_TRUE(is_saved("interrupted"));
  EXPECT_EQ(saved_before, false);
}

TEST_F(RanksEnd, TheGroupHearsOfAnErrorBeforeRankZeroSaves) {
  std::optional<bool> saved_before;
  RlOptions options = unsaved("failed");
  std::atomic<int> asked{0};
  run_on(2, options, run_rl, [&](int rank, Control& control) {
    if (rank != 0) return;
    control.interrupted = [&]() -> bool {
      if (++asked > 20) throw DataError({.what = "a row is bad"});
      return false;
    };
    watch(control, [&] {
      if (!saved_before) saved_before = is_saved("failed");
    });
  });
  EXPECT_TRUE(is_saved("failed"));
  EXPECT_EQ(saved_before, false);
}

// Another rank notices the interrupt at an earlier place and ends; this one hears of that first.
TEST_F(RanksEnd, AnInterruptThatArrivesAsTheEndOfAnotherRankIsAnInterrupt) {
  std::atomic<int> checks{0};
  const std::vector<std::string> thrown = run_on(2, unsaved("heard"), run_rl, [&](int rank, Control& control) {
    if (rank == 0)
      watch(
          control, [] {},
          [&](parallel::Group& group) {
            if (++checks < 20) return;
            group.interrupt();
            throw parallel::PeerFailed(1, {.what = "interrupted"}, 130);
          });
  });
  EXPECT_NE(thrown[0].find("Cancelled 130: interrupted; iteration"), std::string::npos) << thrown[0];
  EXPECT_TRUE(is_saved("heard"));
}

}  // namespace
}  // namespace lockstep::recipes
