#include "parallel/tcp/mesh.h"

#include <poll.h>

#include <algorithm>
#include <thread>

namespace lockstep::parallel::tcp {

namespace {
// How long a connection may rest after the group has failed, and how long its end may come before the reason does.
constexpr std::chrono::milliseconds kLastBytes{500};
}  // namespace

void Mesh::give_up(int rank, const char* why) {
  // Who has ended says so on the control channel, or is missed there: that is the better reason.
  for (const Deadline until = Clock::now() + kLastBytes; Clock::now() < until && !control_.failed();)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (!control_.failed())
    control_.fail(group_, rank, {.fault = {.what = why, .where = "data connection to rank " + std::to_string(rank_)}});
  control_.enter({.group = static_cast<int16_t>(group_)});  // throws: the group has failed
  throw PeerFailed(rank, {.what = why}, 1);
}

bool Mesh::move(std::vector<std::span<const std::byte>>& to, std::vector<std::span<std::byte>>& from, Deadline until) {
  const bool failed = control_.failed();
  std::vector<pollfd> entries;
  std::vector<int> ranks;
  for (size_t rank = 0; rank < sockets_.size(); ++rank) {
    const auto events = static_cast<short>((to[rank].empty() ? 0 : POLLOUT) | (from[rank].empty() ? 0 : POLLIN));
    if (events == 0) continue;
    entries.push_back({.fd = sockets_[rank].fd(), .events = events, .revents = 0});
    ranks.push_back(static_cast<int>(rank));
  }
  entries.push_back({.fd = failed ? -1 : control_.failed_fd(), .events = POLLIN, .revents = 0});
  const int wait =
      failed ? std::min(milliseconds_until(until), static_cast<int>(kLastBytes.count())) : milliseconds_until(until);
  if (::poll(entries.data(), entries.size(), wait) == 0)
    give_up(ranks.front(), "no bytes move on the connection to it within the deadline");
  bool moved = entries.back().revents != 0;  // not bytes, but a reason to look again
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto rank = static_cast<size_t>(ranks[i]);
    if (entries[i].revents == 0) continue;
    const ptrdiff_t sent = to[rank].empty() ? 0 : send_some(sockets_[rank], to[rank]);
    const ptrdiff_t got = from[rank].empty() ? 0 : receive_some(sockets_[rank], from[rank]);
    if (sent < 0 || got < 0) give_up(ranks[i], "the connection to it has ended");
    to[rank] = to[rank].subspan(static_cast<size_t>(sent));
    from[rank] = from[rank].subspan(static_cast<size_t>(got));
    moved = moved || sent > 0 || got > 0;
  }
  return moved;
}

void Mesh::exchange(const std::vector<std::span<const std::byte>>& to, const std::vector<std::span<std::byte>>& from) {
  std::vector<std::span<const std::byte>> to_send = to;
  std::vector<std::span<std::byte>> to_receive = from;
  const auto is_done = [](const auto& spans) {
    return std::ranges::all_of(spans, [](const auto& span) { return span.empty(); });
  };
  Deadline until = Clock::now() + timeouts_.call;
  while (!is_done(to_send) || !is_done(to_receive))
    if (move(to_send, to_receive, until)) until = Clock::now() + timeouts_.call;
}

}  // namespace lockstep::parallel::tcp
