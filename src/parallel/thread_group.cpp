#include <algorithm>
#include <string>

#include "parallel/checks.h"
#include "parallel/meeting.h"

namespace lockstep::parallel {

namespace {

// In a call: from enter to leave.
class Visit {
 public:
  Visit(Meeting& meeting, int rank, const Call& call) : meeting_(meeting) { meeting.enter(rank, call); }
  ~Visit() { meeting_.leave(); }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  Meeting& meeting_;
};

class ThreadRank final : public Group {
 public:
  ThreadRank(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}
  ~ThreadRank() override { meeting_->leave_for_good(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }

  void broadcast(std::span<std::byte> bytes, int root) override {
    checked([&] { require_root(root, size()); });
    const Visit visit(*meeting_, rank_, {.verb = "broadcast", .root = root, .shown = bytes});
    if (rank_ != root) std::ranges::copy(meeting_->shown(root), bytes.begin());
  }

  void all_gather(std::span<std::byte> out, std::span<const std::byte> mine) override {
    checked([&] { require_gathered(out.size(), mine.size(), size()); });
    const Visit visit(*meeting_, rank_, {.verb = "all_gather", .shown = mine});
    for (int rank = 0; rank < size(); ++rank)
      std::ranges::copy(meeting_->shown(rank), piece(out, rank, mine.size()).begin());
  }

  void all_to_all(std::span<std::byte> out, std::span<const std::byte> in) override {
    checked([&] { require_exchanged(out.size(), in.size(), size()); });
    const size_t bytes = in.size() / static_cast<size_t>(size());
    const Visit visit(*meeting_, rank_, {.verb = "all_to_all", .shown = in});
    for (int rank = 0; rank < size(); ++rank)
      std::ranges::copy(piece(meeting_->shown(rank), rank_, bytes), piece(out, rank, bytes).begin());
  }

  void barrier() override { const Visit visit(*meeting_, rank_, {.verb = "barrier"}); }

  void fail(const Fault& fault, int exit_code) noexcept override { meeting_->fail(rank_, fault, exit_code); }
  void check() override { meeting_->check(); }
  bool failed() const noexcept override { return meeting_->failed(); }
  void interrupt() noexcept override { meeting_->interrupt(); }
  bool interrupted() const noexcept override { return meeting_->interrupted(); }

 private:
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
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> threads(int size, Timeouts timeouts) {
  if (size < 1)
    throw ConfigError({.what = "a group needs a rank", .where = "size", .got = std::to_string(size), .wanted = ">= 1"});
  const auto meeting = std::make_shared<Meeting>(size, timeouts);
  std::vector<std::unique_ptr<Group>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<ThreadRank>(meeting, rank));
  return ranks;
}

}  // namespace lockstep::parallel
