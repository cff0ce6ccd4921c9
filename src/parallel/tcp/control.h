// The control channel of a group: one connection from each rank to rank 0, served by a thread of its own. Rank 0 lets a
// call begin when all ranks have come to it, hears of failures first and tells everybody, so that all ranks name the
// same cause; signs of life show who has gone silent.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "parallel/connect.h"
#include "parallel/report.h"
#include "parallel/tcp/frame.h"

namespace lockstep::parallel::tcp {

// A call as a rank comes to it. Ranks compare these before bytes move.
struct CallShape {
  enum class Verb : int32_t { barrier, broadcast, all_gather, all_to_all };
  Verb verb = Verb::barrier;
  int32_t root = 0;
  uint64_t bytes = 0;
  bool operator==(const CallShape&) const = default;
};

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
  // This rank's failure, or that of the rank `blamed`. Returns when rank 0 has heard of it, or after a second.
  void fail(int blamed, Report report) noexcept;
  void interrupt() noexcept;
  bool interrupted() const noexcept;
  void throw_if_failed();                               // not for a rank that has only left
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
  void require_same_calls();
  void receive(int rank, const Frame& frame);
  void receive_at_hub(int rank, const Frame& frame);
  void lost(int rank);
  void end_by_deadline();
  [[noreturn]] void throw_failure();

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
  std::vector<std::optional<CallShape>> calls_;  // of the hub: who has come to the open call
  int arrived_ = 0;
  Deadline open_until_{}, next_beat_{}, failed_at_{};
  int64_t entered_ = 0;  // calls that all ranks have come to
  std::optional<Failure> failure_;
  bool delivered_ = false;  // this process's own thread has heard of it
  bool interrupted_ = false, stopping_ = false, told_stuck_ = false;
  std::thread thread_;
};

}  // namespace lockstep::parallel::tcp
