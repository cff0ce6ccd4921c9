#include "parallel/tcp/tcp_group.h"

#include <algorithm>

#include "parallel/checks.h"

namespace lockstep::parallel::tcp {

namespace {

using Verb = CallShape::Verb;

class TcpRank final : public Group {
 public:
  TcpRank(std::shared_ptr<Control> control, std::array<std::vector<Socket>, kGroups> meshes, size_t group, int rank,
          const Timeouts& timeouts)
      : rank_(rank),
        size_(static_cast<int>(meshes[group].size())),
        group_(group),
        timeouts_(timeouts),
        control_(std::move(control)),
        mesh_(std::move(meshes[group]), rank, group, *control_, timeouts),
        meshes_(std::move(meshes)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void broadcast(std::span<std::byte> bytes, int root) override {
    checked([&] { require_root(root, size_); });
    enter({.verb = Verb::broadcast, .root = root, .bytes = bytes.size()});
    Pieces pieces(*this);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank_ == root) pieces.to[index(rank)] = bytes;
      if (rank == root) pieces.from[index(rank)] = bytes;
    }
    pieces.exchange();
  }

  void all_gather(std::span<std::byte> out, std::span<const std::byte> mine) override {
    checked([&] { require_gathered(out.size(), mine.size(), size_); });
    enter({.verb = Verb::all_gather, .bytes = mine.size()});
    Pieces pieces(*this);
    for (int rank = 0; rank < size_; ++rank) {
      pieces.to[index(rank)] = mine;
      pieces.from[index(rank)] = out.subspan(index(rank) * mine.size(), mine.size());
    }
    std::ranges::copy(mine, pieces.from[index(rank_)].begin());
    pieces.exchange();
  }

  void all_to_all(std::span<std::byte> out, std::span<const std::byte> in) override {
    checked([&] { require_exchanged(out.size(), in.size(), size_); });
    enter({.verb = Verb::all_to_all, .bytes = in.size()});
    const size_t bytes = in.size() / index(size_);
    Pieces pieces(*this);
    for (int rank = 0; rank < size_; ++rank) {
      pieces.to[index(rank)] = in.subspan(index(rank) * bytes, bytes);
      pieces.from[index(rank)] = out.subspan(index(rank) * bytes, bytes);
    }
    std::ranges::copy(pieces.to[index(rank_)], pieces.from[index(rank_)].begin());
    pieces.exchange();
  }

  void barrier() override { enter({.verb = Verb::barrier}); }

  void fail(const Fault& fault, int exit_code) noexcept override {
    try {
      control_->fail(group_, rank_, {.fault = fault, .exit_code = exit_code});
    } catch (...) {  // no memory to copy the words
    }
  }
  void check() override { control_->throw_if_failed(group_); }
  bool failed() const noexcept override { return control_->failed_by_error(); }
  void interrupt() noexcept override { control_->interrupt(); }
  bool interrupted() const noexcept override { return control_->interrupted(); }
  std::unique_ptr<Group> second() override {
    return std::make_unique<TcpRank>(control_, std::move(meshes_), 1, rank_, timeouts_);
  }

 private:
  void enter(CallShape call) {
    call.group = static_cast<int16_t>(group_);
    control_->enter(call);
  }

  // What goes to each rank and comes from it, but for this one.
  struct Pieces {
    explicit Pieces(TcpRank& group) : self(group), to(index(group.size_)), from(index(group.size_)) {}
    void exchange() {
      to[index(self.rank_)] = {};
      from[index(self.rank_)] = {};
      self.mesh_.exchange(to, from);
    }
    TcpRank& self;
    std::vector<std::span<const std::byte>> to;
    std::vector<std::span<std::byte>> from;
  };

  static size_t index(int rank) { return static_cast<size_t>(rank); }

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

  const int rank_, size_;
  const size_t group_;
  const Timeouts timeouts_;
  const std::shared_ptr<Control> control_;
  Mesh mesh_;
  std::array<std::vector<Socket>, kGroups> meshes_;  // of groups that are not made yet
};

}  // namespace

std::unique_ptr<Group> make_group(std::shared_ptr<Control> control, std::array<std::vector<Socket>, kGroups> meshes,
                                  int rank, const Timeouts& timeouts) {
  return std::make_unique<TcpRank>(std::move(control), std::move(meshes), 0, rank, timeouts);
}

}  // namespace lockstep::parallel::tcp
