#include "parallel/mpi/mpi_group.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "core/error.h"
#include "parallel/agree.h"
#include "parallel/checks.h"
#include "parallel/mpi/mpi_functions.h"

namespace lockstep::parallel {

namespace {

constexpr std::chrono::milliseconds kLastBytes{500};

enum class Verb : int32_t { barrier, broadcast, all_gather, all_to_all };

// A call as a rank comes to it.
struct MpiCall {
  Verb verb = Verb::barrier;
  int32_t root = 0;
  uint64_t bytes = 0;
  bool operator==(const MpiCall&) const = default;
  std::string text() const {
    constexpr const char* kNames[] = {"barrier", "broadcast", "all_gather", "all_to_all"};
    return std::string(kNames[static_cast<int>(verb)]) + " of " + std::to_string(bytes) + " bytes, root " +
           std::to_string(root);
  }
};

class MpiGroup final : public Group {
 public:
  MpiGroup(std::unique_ptr<Group> group, const MpiFunctions& mpi, std::chrono::milliseconds deadline)
      : group_(std::move(group)), mpi_(mpi), deadline_(deadline) {}
  // A rank that ends without this is a failure to mpirun, which then ends the others.
  ~MpiGroup() override {
    if (!dead_ && !group_->failed()) mpi_.finish();
  }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }

  void broadcast(std::span<std::byte> bytes, int root) override {
    checked([&] { require_root(root, size()); });
    enter({.verb = Verb::broadcast, .root = root, .bytes = bytes.size()});
    for (int other = 0; other < size(); ++other)
      if (other != rank() && rank() == root) begin(mpi_.send(bytes.data(), bytes.size(), other));
    if (rank() != root) begin(mpi_.receive(bytes.data(), bytes.size(), root));
    finish();
  }

  void all_gather(std::span<std::byte> out, std::span<const std::byte> mine) override {
    checked([&] { require_gathered(out.size(), mine.size(), size()); });
    enter({.verb = Verb::all_gather, .bytes = mine.size()});
    exchange(out, mine.size(), [&](int) { return mine; });
  }

  void all_to_all(std::span<std::byte> out, std::span<const std::byte> in) override {
    checked([&] { require_exchanged(out.size(), in.size(), size()); });
    enter({.verb = Verb::all_to_all, .bytes = in.size()});
    const size_t piece = in.size() / static_cast<size_t>(size());
    exchange(out, piece, [&](int other) { return in.subspan(static_cast<size_t>(other) * piece, piece); });
  }

  void barrier() override {
    if (dead_) std::rethrow_exception(dead_);
    enter({});
  }

  void fail(const Fault& fault, int exit_code) noexcept override { group_->fail(fault, exit_code); }
  void check() override { group_->check(); }
  bool failed() const noexcept override { return group_->failed(); }
  void interrupt() noexcept override { group_->interrupt(); }
  bool interrupted() const noexcept override { return group_->interrupted(); }
  std::unique_ptr<Group> second() override { return group_->second(); }  // MPI is asked by one thread only

 private:
  // Every rank's piece of `out` from that rank; piece_for(r) of this one goes to rank r.
  template <class PieceFor>
  void exchange(std::span<std::byte> out, size_t bytes, const PieceFor& piece_for) {
    for (int other = 0; other < size(); ++other) {
      const auto to = out.subspan(static_cast<size_t>(other) * bytes, bytes);
      if (other == rank())
        std::ranges::copy(piece_for(other), to.begin());
      else
        begin(mpi_.receive(to.data(), bytes, other));
    }
    for (int other = 0; other < size(); ++other)
      if (other != rank()) begin(mpi_.send(piece_for(other).data(), bytes, other));
    finish();
  }

  template <class Check>
  void checked(const Check& check) {
    if (dead_) std::rethrow_exception(dead_);
    try {
      check();
    } catch (const Error& error) {
      fail(error.fault(), error.exit_code());
      throw;
    }
  }

  // Until all ranks have come with the same call.
  void enter(const MpiCall& mine) {
    std::vector<MpiCall> all(static_cast<size_t>(size()));
    group_->all_gather(std::as_writable_bytes(std::span(all)), std::as_bytes(std::span(&mine, 1)));
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      dead_ = std::make_exception_ptr(ShapeError({.what = "the ranks of a group make different calls",
                                                  .where = "rank " + std::to_string(rank),
                                                  .got = all[rank].text(),
                                                  .wanted = all[0].text() + ", as rank 0"}));
      std::rethrow_exception(dead_);
    }
  }

  void begin(int result) {
    if (result == 0) return;
    std::array<char, 512> text{};
    mpi_.describe(result, text.data(), text.size());
    end(std::make_exception_ptr(ResourceError({.what = "MPI failed", .got = text.data()})));
  }

  [[noreturn]] void end(const std::exception_ptr& error) {
    dead_ = error;
    parallel::fail(*group_, error);
    std::rethrow_exception(error);
  }

  void finish() {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + deadline_;
    std::optional<Clock::time_point> failed_at;
    for (int done = 0;;) {
      begin(mpi_.test(&done));
      if (done) return;
      if (!failed_at && group_->failed()) failed_at = Clock::now();
      // Bytes that all ranks have sent still come, so that a call which one rank has ended is whole on all.
      if (failed_at && Clock::now() > *failed_at + kLastBytes) {
        try {
          group_->check();
        } catch (...) {
          dead_ = std::current_exception();
          throw;
        }
      }
      if (Clock::now() > until)
        end(std::make_exception_ptr(Cancelled({.what = "MPI did not move the bytes of a call within its deadline"})));
      std::this_thread::yield();  // ranks may outnumber cores
    }
  }

  const std::unique_ptr<Group> group_;
  const MpiFunctions& mpi_;
  const std::chrono::milliseconds deadline_;
  std::exception_ptr dead_;
};

const MpiFunctions& load_module() {
  const std::string beside = (std::filesystem::read_symlink("/proc/self/exe").parent_path() / kMpiModule).string();
  std::string reason;
  for (const std::string& path : {beside, std::string(kMpiModule)}) {
    // MPI loads parts of its own, which look for its symbols.
    if (void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL))
      if (void* const entry = ::dlsym(module, kMpiEntry)) return *reinterpret_cast<const MpiFunctions* (*)()>(entry)();
    const char* const said = ::dlerror();
    if (reason.empty()) reason = said != nullptr ? said : "no reason given";
  }
  throw ConfigError({.what = "this build has no MPI",
                     .where = kMpiModule,
                     .got = reason,
                     .attempt = "install libopenmpi-dev and build again"});
}

}  // namespace

std::unique_ptr<Group> with_mpi(std::unique_ptr<Group> group, std::chrono::milliseconds deadline) {
  const MpiFunctions* mpi = nullptr;
  agree_after(*group, [&] { mpi = &load_module(); });
  agree_after(*group, [&] {
    int rank = 0, size = 0;
    if (mpi->start(&rank, &size) != 0) throw ConfigError({.what = "MPI cannot begin", .where = "MPI_Init"});
    if (rank != group->rank() || size != group->size())
      throw ConfigError({.what = "MPI counts the ranks of this job otherwise",
                         .where = "rank " + std::to_string(group->rank()),
                         .got = "rank " + std::to_string(rank) + " of " + std::to_string(size),
                         .wanted = "rank " + std::to_string(group->rank()) + " of " + std::to_string(group->size()),
                         .attempt = "mpirun as the launcher"});
  });
  return std::make_unique<MpiGroup>(std::move(group), *mpi, deadline);
}

}  // namespace lockstep::parallel
