// Accepts connections of those who prove that they know the job's secret. Others cost little: at most kMaxStrangers of
// them are kept at a time (one more closes the oldest), each for a limited time, and a few bytes of each are read.
// Those who have proved it are no strangers any more: they stay until they have said who they are.
#pragma once

#include <functional>
#include <list>

#include "parallel/tcp/frame.h"
#include "parallel/tcp/handshake.h"

namespace lockstep::parallel::tcp {

struct Newcomer {
  Socket socket;
  Frame hello;  // its first frame, of at most kNewcomerBytes
};

class Doorkeeper {
 public:
  static constexpr size_t kMaxStrangers = 64;

  // `patience`: until a caller has proved to know the secret and said hello. Long enough for a rank on a busy host.
  Doorkeeper(Socket listener, const Secret& secret, std::chrono::milliseconds patience = std::chrono::seconds(60))
      : listener_(std::move(listener)), secret_(secret), patience_(patience) {}

  // The next one who has proved to know the secret and has said hello; nothing by the deadline. `between` is called
  // several times a second while it waits, and may throw.
  std::optional<Newcomer> next(Deadline deadline, const std::function<void()>& between = {});
  int64_t refused() const { return refused_; }  // who did not prove it, so far
  void close() { listener_.close(); }

 private:
  struct Stranger {
    Socket socket;
    Deadline until;
    Challenge challenge;
    bool proved = false;
    FrameReader reader{kNewcomerBytes};
  };
  void admit();
  // Whether its hello is there (then `hello` holds it), it may stay, or it has to go.
  enum class Visit { stays, goes, enters };
  Visit advance(Stranger& stranger, Frame& hello) const;

  Socket listener_;
  const Secret& secret_;
  const std::chrono::milliseconds patience_;
  std::list<Stranger> strangers_;
  int64_t refused_ = 0;
};

}  // namespace lockstep::parallel::tcp
