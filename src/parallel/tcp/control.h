// The control channel of the groups of a job's ranks: one connection from each rank to rank 0, served by a thread of
// its own. Rank 0 lets a call begin when all ranks have come to it, hears of failures first and tells everybody, so
// that all ranks name the same cause; signs of life show who has gone silent. A failure is one of all groups.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "parallel/connect.h"
#include "parallel/report.h"
#include "parallel/tcp/frame.h"
#include "parallel/tcp/open_call.h"

namespace lockstep::parallel::tcp {

class Control {
 public:
  struct Options {
    int rank = 0, size = 1;
    Timeouts timeouts;
    int lifeline_fd = -1;
    std::function<void(const Fault&, int)> stuck;
  };
  // `links`: of rank 0 the connection of each rank (its own is closed); of another rank one, to rank 0.
  Control(std::vector<Socket> links, Options options);
  ~Control();  // says that this rank has left

  // Waits until all ranks have come to the call. Throws what the verbs of a Group throw.
  void enter(const CallShape& call);
  // This rank's failure, or that of the rank `blamed`, found by the user of this group. Returns when rank 0 has heard
  // of it, or after a second.
  void fail(size_t group, int blamed, Report report) noexcept;
  void interrupt() noexcept;
  bool interrupted() const noexcept;
  void throw_if_failed(size_t group);                   // not for a rank that has only left
  bool failed_by_error() const noexcept;                // whether it would throw
  bool failed() const;                                  // or a rank has left
  int failed_fd() const { return failed_event_.fd(); }  // can be read once failed() is true

 private:
  struct Link {
    Socket socket;
    FrameReader reader{kMemberBytes};
    std::vector<std::byte> out;  // not sent yet
    int64_t silent_beats = 0;
    bool left = false;
  };
  struct Failure {
    std::string kind;   // of the error that all ranks throw; "PeerFailed" or one that core/make_error.h makes
    int32_t rank = 0;   // of PeerFailed
    bool left = false;  // nobody failed, but a rank has left
    Report report;
  };

  // All of these with the mutex held.
  bool is_hub() const { return options_.rank == 0; }
  void send(Link& link, const std::vector<std::byte>& frame);
  void send_to_all(const std::vector<std::byte>& frame);
  void flush(Link& link);
  void end(Failure failure);  // of the whole group, once; the hub tells the others
  void come(int rank, const CallShape& call);
  void receive(int rank, const Frame& frame);
  void receive_at_hub(int rank, const Frame& frame);
  void lost(int rank);
  void end_by_deadline();
  [[noreturn]] void throw_failure(size_t group);

  // Of the thread.
  void serve();
  void read(size_t index);
  void beat();
  int wait_ms() const;
  void watch_lifeline(short events);
  void call_stuck(std::unique_lock<std::mutex>& lock);
  int rank_of(size_t link) const { return is_hub() ? static_cast<int>(link) : 0; }

  const Options options_;
  Socket wake_event_, failed_event_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Link> links_;
  std::array<OpenCall, kGroups> calls_;     // of the hub: what ranks have come to
  std::array<int64_t, kGroups> entered_{};  // calls that all ranks have come to
  Deadline next_beat_{}, failed_at_{};
  std::optional<Failure> failure_;
  // The thread that uses the first group has heard of it. It ends the process; who uses the second may be idle, and
  // hears of it at its next call.
  bool delivered_ = false;
  bool interrupted_ = false, stopping_ = false, told_stuck_ = false;
  std::thread thread_;
};

}  // namespace lockstep::parallel::tcp
