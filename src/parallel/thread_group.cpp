#include <algorithm>
#include <string>

#include "parallel/checks.h"
#include "parallel/meeting.h"

namespace lockstep::parallel {

namespace {

// In a call: from enter to leave.
class Visit {
 public:
  Visit(Meeting& meeting, Place place, const Call& call) : meeting_(meeting), group_(place.group) {
    meeting.enter(place, call);
  }
  ~Visit() { meeting_.leave(group_); }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  Meeting& meeting_;
  const size_t group_;
};

class ThreadRank final : public Group {
 public:
  ThreadRank(std::shared_ptr<Meeting> meeting, Place place) : meeting_(std::move(meeting)), place_(place) {}
  ~ThreadRank() override {
    if (place_.group == 0) meeting_->leave_for_good(place_.rank);
  }

  int rank() const override { return place_.rank; }
  int size() const override { return meeting_->size(); }

  void broadcast(std::span<std::byte> bytes, int root) override {
    checked([&] { require_root(root, size()); });
    const Visit visit(*meeting_, place_, {.verb = "broadcast", .root = root, .shown = bytes});
    if (rank() != root) std::ranges::copy(shown(root), bytes.begin());
  }

  void all_gather(std::span<std::byte> out, std::span<const std::byte> mine) override {
    checked([&] { require_gathered(out.size(), mine.size(), size()); });
    const Visit visit(*meeting_, place_, {.verb = "all_gather", .shown = mine});
    for (int other = 0; other < size(); ++other)
      std::ranges::copy(shown(other), piece(out, other, mine.size()).begin());
  }

  void all_to_all(std::span<std::byte> out, std::span<const std::byte> in) override {
    checked([&] { require_exchanged(out.size(), in.size(), size()); });
    const size_t bytes = in.size() / static_cast<size_t>(size());
    const Visit visit(*meeting_, place_, {.verb = "all_to_all", .shown = in});
    for (int other = 0; other < size(); ++other)
      std::ranges::copy(piece(shown(other), rank(), bytes), piece(out, other, bytes).begin());
  }

  void barrier() override { const Visit visit(*meeting_, place_, {.verb = "barrier"}); }

  void fail(const Fault& fault, int exit_code) noexcept override { meeting_->fail(rank(), fault, exit_code); }
  void check() override { meeting_->check(); }
  bool failed() const noexcept override { return meeting_->failed(); }
  void interrupt() noexcept override { meeting_->interrupt(); }
  bool interrupted() const noexcept override { return meeting_->interrupted(); }
  std::unique_ptr<Group> second() override {
    return std::make_unique<ThreadRank>(meeting_, Place{.rank = rank(), .group = 1});
  }

 private:
  std::span<const std::byte> shown(int other) const { return meeting_->shown({.rank = other, .group = place_.group}); }

  template <class Byte>
  static std::span<Byte> piece(std::span<Byte> all, int index, size_t bytes) {
    return all.subspan(static_cast<size_t>(index) * bytes, bytes);
  }

  // The others wait for this rank's call: if it cannot be made, they must hear of it.
  template <class Check>
  void checked(const Check& check) {
    try {
      check();
    } catch (const Error& error) {
      fail(error.fault(), error.exit_code());
      throw;
    }
  }

  const std::shared_ptr<Meeting> meeting_;
  const Place place_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> threads(int size, Timeouts timeouts) {
  if (size < 1)
    throw ConfigError({.what = "a group needs a rank", .where = "size", .got = std::to_string(size), .wanted = ">= 1"});
  const auto meeting = std::make_shared<Meeting>(size, timeouts);
  std::vector<std::unique_ptr<Group>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<ThreadRank>(meeting, Place{.rank = rank}));
  return ranks;
}

}  // namespace lockstep::parallel
