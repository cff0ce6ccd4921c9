// TCP sockets that never block: what waits, waits in poll with a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace lockstep::parallel::tcp {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

inline constexpr std::chrono::milliseconds kTurn{200};  // between two looks at something else than the socket

// A file descriptor that is closed with this object.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

// A listening socket. Empty host: every interface. Port 0: a free one.
// ResourceError: the address cannot be used.
Socket listen_on(const std::string& host, uint16_t port);
uint16_t port_of(const Socket& listener);
// The next connection, with no delay of small packets; nothing: none waits.
std::optional<Socket> accept_from(const Socket& listener);
// From now on the connection ends when the other host has not acknowledged bytes for so long.
void require_receipts(const Socket& socket, std::chrono::milliseconds within);
// The other end's address as digits; empty if it has gone.
std::string peer_address(const Socket& socket);
// 127.0.0.0/8, ::1, or a name of these.
bool is_loopback(const std::string& host);

// Connects, trying again while nobody listens there. Cancelled after the deadline, naming what the last try said.
Socket dial(const std::string& host, uint16_t port, Deadline deadline);

// As much as can be moved now: 0 if nothing can, -1 if the connection has ended or failed.
ptrdiff_t send_some(const Socket& socket, std::span<const std::byte> bytes);
ptrdiff_t receive_some(const Socket& socket, std::span<std::byte> bytes);

// All of it. ResourceError: the connection ended. Cancelled: the deadline has passed.
void send_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline);
// `between` is called several times a second while it waits, and may throw.
void receive_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline,
                 const std::function<void()>& between = {});

// Whether the other end has closed the connection, or its process is gone. What it sent before can still be read.
bool has_ended(const Socket& socket);
// Whether there is something to read, or the connection has ended; waits for it, but not beyond the deadline.
bool can_read(const Socket& socket, Deadline deadline);

// For poll(): until the deadline, at least 0 and at most `most`.
int milliseconds_until(Deadline deadline, std::chrono::milliseconds most = std::chrono::hours(1));

}  // namespace lockstep::parallel::tcp
