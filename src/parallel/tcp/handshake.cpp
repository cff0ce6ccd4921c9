#include "parallel/tcp/handshake.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace lockstep::parallel::tcp {

namespace {

// The same in all builds: those of other ones get as far as the hello, which names their build.
constexpr std::string_view kGreeting = "LOCKSTEP RANKS 1";
static_assert(kGreeting.size() == kGreetingBytes);

Mac proof(const Secret& secret, std::string_view side, const Nonce& caller, const Nonce& listener) {
  std::vector<std::byte> message;
  const auto add = [&](std::span<const std::byte> bytes) { message.insert(message.end(), bytes.begin(), bytes.end()); };
  add(std::as_bytes(std::span(side)));
  add(caller);
  add(listener);
  return hmac_sha256(secret, message);
}

}  // namespace

void prove_as_caller(const Socket& socket, const Secret& secret, Deadline deadline,
                     const std::function<void()>& between) {
  Nonce mine, theirs;
  fill_random(mine);
  send_all(socket, std::as_bytes(std::span(kGreeting)), deadline);
  send_all(socket, mine, deadline);
  Mac answer;
  receive_all(socket, theirs, deadline, between);
  receive_all(socket, answer, deadline, between);
  if (!same_secret(answer, proof(secret, "listener", mine, theirs)))
    throw ConfigError({.what = "the process at the address of another rank does not know this job's secret",
                       .where = peer_address(socket),
                       .attempt = "one secret file for all ranks, or another port if two jobs share it"});
  send_all(socket, proof(secret, "caller", mine, theirs), deadline);
}

bool Challenge::fill(const Socket& socket, size_t wanted) {
  while (count_ < wanted) {
    const ptrdiff_t got = receive_some(socket, std::span(received_).subspan(count_, wanted - count_));
    ended_ = got < 0;
    if (got <= 0) return false;
    count_ += static_cast<size_t>(got);
  }
  return true;
}

Challenge::State Challenge::advance(const Socket& socket) {
  if (!asked_) {
    if (!fill(socket, received_.size())) return ended_ ? State::refused : State::open;
    if (!std::ranges::equal(std::span(received_).first(kGreetingBytes), std::as_bytes(std::span(kGreeting))))
      return State::refused;
    std::ranges::copy(std::span(received_).subspan(kGreetingBytes), caller_.begin());
    fill_random(listener_);
    std::array<std::byte, kNonceBytes + sizeof(Mac)> answer;
    std::ranges::copy(listener_, answer.begin());
    std::ranges::copy(proof(secret_, "listener", caller_, listener_), answer.begin() + kNonceBytes);
    // A fresh connection has room for these bytes; one that has not is no rank.
    if (send_some(socket, answer) != static_cast<ptrdiff_t>(answer.size())) return State::refused;
    asked_ = true;
    count_ = 0;
  }
  if (!fill(socket, sizeof(Mac))) return ended_ ? State::refused : State::open;
  const bool knows = same_secret(std::span(received_).first(sizeof(Mac)), proof(secret_, "caller", caller_, listener_));
  return knows ? State::proved : State::refused;
}

}  // namespace lockstep::parallel::tcp
