#include "parallel/tcp/doorkeeper.h"

#include <poll.h>

#include <algorithm>

#include "core/error.h"

namespace lockstep::parallel::tcp {

void Doorkeeper::admit() {
  while (std::optional<Socket> socket = accept_from(listener_)) {
    if (std::ranges::count(strangers_, false, &Stranger::proved) >= static_cast<ptrdiff_t>(kMaxStrangers)) {
      const auto oldest = std::ranges::find_if(strangers_, [](Stranger& one) {
        // Its proof may have come since it was looked at.
        if (!one.proved) one.proved = one.challenge.advance(one.socket) == Challenge::State::proved;
        return !one.proved;
      });
      if (oldest != strangers_.end()) strangers_.erase(oldest), ++refused_;
    }
    strangers_.push_back(
        {.socket = std::move(*socket), .until = Clock::now() + patience_, .challenge = Challenge(secret_)});
  }
}

Doorkeeper::Visit Doorkeeper::advance(Stranger& stranger, Frame& hello) const {
  if (!stranger.proved) {
    const Challenge::State state = stranger.challenge.advance(stranger.socket);
    if (state == Challenge::State::refused) return Visit::goes;
    if (state == Challenge::State::open) return Visit::stays;
    stranger.proved = true;
  }
  try {
    const bool open = read_into(stranger.reader, stranger.socket);
    if (std::optional<Frame> frame = stranger.reader.next()) {
      hello = std::move(*frame);
      return hello.type == FrameType::hello && stranger.reader.pending() == 0 ? Visit::enters : Visit::goes;
    }
    return open ? Visit::stays : Visit::goes;
  } catch (const FormatError&) {
    return Visit::goes;
  }
}

std::optional<Newcomer> Doorkeeper::next(Deadline deadline, const std::function<void()>& between) {
  for (;;) {
    if (between) between();
    admit();
    for (auto stranger = strangers_.begin(); stranger != strangers_.end();) {
      Newcomer newcomer;
      const Visit visit = advance(*stranger, newcomer.hello);
      if (visit == Visit::enters) {
        newcomer.socket = std::move(stranger->socket);
        strangers_.erase(stranger);
        return newcomer;
      }
      const bool goes = visit == Visit::goes || Clock::now() >= stranger->until;
      refused_ += goes ? 1 : 0;
      stranger = goes ? strangers_.erase(stranger) : std::next(stranger);
    }
    if (Clock::now() >= deadline) return std::nullopt;
    std::vector<pollfd> entries{{.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
    for (const Stranger& stranger : strangers_)
      entries.push_back({.fd = stranger.socket.fd(), .events = POLLIN, .revents = 0});
    ::poll(entries.data(), entries.size(), milliseconds_until(deadline, std::chrono::milliseconds(200)));
  }
}

}  // namespace lockstep::parallel::tcp
