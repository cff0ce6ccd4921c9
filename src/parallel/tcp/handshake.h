// How the two ends of a connection prove to each other that they know the job's secret. Before that, nothing but
// these bytes of fixed size is read:
//   caller    kGreeting, 32 random bytes C
//   listener  32 random bytes L, HMAC(secret, "listener" C L)
//   caller    HMAC(secret, "caller" C L)
// Each side proves first what it could not have copied from the other: the words differ, and so do the random bytes.
#pragma once

#include "core/hmac.h"
#include "parallel/connect.h"
#include "parallel/tcp/socket.h"

namespace lockstep::parallel::tcp {

inline constexpr size_t kNonceBytes = 32, kGreetingBytes = 16;
using Nonce = std::array<std::byte, kNonceBytes>;

// The caller's side. ConfigError: the listener does not know the secret. Else what send_all and receive_all throw.
// `between`: as of receive_all.
void prove_as_caller(const Socket& socket, const Secret& secret, Deadline deadline,
                     const std::function<void()>& between = {});

// The listener's side, which has many callers at a time and waits for none of them.
class Challenge {
 public:
  explicit Challenge(const Secret& secret) : secret_(secret) {}
  enum class State { open, proved, refused };
  // Goes on with what has come; call it whenever the socket can be read. Reads nothing beyond the proof.
  State advance(const Socket& socket);

 private:
  bool fill(const Socket& socket, size_t wanted);  // false: not all is there yet, or the connection ended (refused_)

  const Secret& secret_;
  std::array<std::byte, kGreetingBytes + kNonceBytes> received_{};
  size_t count_ = 0;
  bool asked_ = false, ended_ = false;
  Nonce caller_{}, listener_{};
};

}  // namespace lockstep::parallel::tcp
