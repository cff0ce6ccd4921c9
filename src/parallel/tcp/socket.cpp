#include "parallel/tcp/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "core/error.h"

namespace lockstep::parallel::tcp {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses addresses_of(const std::string& host, uint16_t port, int flags) {
  const addrinfo wanted{.ai_flags = flags | AI_NUMERICSERV,
                        .ai_family = AF_UNSPEC,
                        .ai_socktype = SOCK_STREAM,
                        .ai_protocol = 0,
                        .ai_addrlen = 0,
                        .ai_addr = nullptr,
                        .ai_canonname = nullptr,
                        .ai_next = nullptr};
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (error != 0)
    throw ResourceError({.what = "the address of a rank is not known", .where = host, .got = gai_strerror(error)});
  return {found, &freeaddrinfo};
}

void without_delay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Where nobody listens at a port of this host that the system may also give to callers, a call can get the very port
// that it calls, and is answered by itself.
bool leads_to_itself(const Socket& socket) {
  sockaddr_storage here{}, there{};
  socklen_t size = sizeof(here), their_size = sizeof(there);
  return ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&here), &size) == 0 &&
         ::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&there), &their_size) == 0 && size == their_size &&
         std::memcmp(&here, &there, size) == 0;
}

void wait_for(const Socket& socket, short events, Deadline deadline) {
  pollfd entry{.fd = socket.fd(), .events = events, .revents = 0};
  const int ready = ::poll(&entry, 1, milliseconds_until(deadline));
  if (ready == 0 || (ready < 0 && errno != EINTR))
    throw Cancelled({.what = "another rank did not answer within the deadline", .where = peer_address(socket)});
}

[[noreturn]] void throw_ended(const Socket& socket) {
  throw ResourceError({.what = "the connection to another rank ended", .where = peer_address(socket)});
}

// One try: connected, or errno.
int try_dial(const addrinfo& address, Deadline deadline, Socket& socket) {
  socket = Socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) return errno;
  without_delay(socket.fd());
  const int connected = ::connect(socket.fd(), address.ai_addr, address.ai_addrlen);
  if (connected == 0) return leads_to_itself(socket) ? ECONNREFUSED : 0;
  if (errno != EINPROGRESS) return errno;
  pollfd entry{.fd = socket.fd(), .events = POLLOUT, .revents = 0};
  if (::poll(&entry, 1, milliseconds_until(deadline, std::chrono::seconds(5))) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 && leads_to_itself(socket) ? ECONNREFUSED : error;
}

}  // namespace

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Socket::~Socket() {
  close();
}

void Socket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

int milliseconds_until(Deadline deadline, std::chrono::milliseconds most) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), most).count());
}

Socket listen_on(const std::string& host, uint16_t port) {
  std::string reason = "no address";
  const Addresses all = addresses_of(host, port, AI_PASSIVE);
  for (const addrinfo* address = all.get(); address != nullptr; address = address->ai_next) {
    Socket socket(::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1, off = 0;
    if (socket.open()) ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (socket.open() && address->ai_family == AF_INET6)
      ::setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (socket.open() && ::bind(socket.fd(), address->ai_addr, address->ai_addrlen) == 0 &&
        ::listen(socket.fd(), 128) == 0)
      return socket;
    reason = std::strerror(errno);
  }
  throw ResourceError({.what = "the port for the ranks of this job cannot be used",
                       .where = (host.empty() ? "every interface" : host) + ", port " + std::to_string(port),
                       .got = reason,
                       .attempt = "another port, or the end of the job that holds it"});
}

uint16_t port_of(const Socket& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw ResourceError({.what = "a listening socket has no port", .got = std::strerror(errno)});
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::optional<Socket> accept_from(const Socket& listener) {
  Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.open()) return std::nullopt;
  without_delay(socket.fd());
  return socket;
}

void require_receipts(const Socket& socket, std::chrono::milliseconds within) {
  const auto most = static_cast<unsigned>(within.count());
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &most, sizeof(most));
}

std::string peer_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST] = "";
  if (::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return "";
  const std::string text = host;
  return text.starts_with("::ffff:") ? text.substr(7) : text;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

Socket dial(const std::string& host, uint16_t port, Deadline deadline) {
  std::string reason;
  do {
    try {
      const Addresses all = addresses_of(host, port, 0);
      for (const addrinfo* address = all.get(); address != nullptr; address = address->ai_next) {
        Socket socket;
        const int error = try_dial(*address, deadline, socket);
        if (error == 0) return socket;
        reason = std::strerror(error);
      }
    } catch (const ResourceError& error) {
      reason = error.fault().got;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (Clock::now() < deadline);
  throw Cancelled({.what = "another rank cannot be reached within the deadline",
                   .where = host + ", port " + std::to_string(port),
                   .got = reason,
                   .attempt = "see that rank 0 runs there and that no firewall is between"});
}

ptrdiff_t send_some(const Socket& socket, std::span<const std::byte> bytes) {
  if (bytes.empty()) return 0;
  const ssize_t sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) return sent;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

ptrdiff_t receive_some(const Socket& socket, std::span<std::byte> bytes) {
  if (bytes.empty()) return 0;
  const ssize_t got = ::recv(socket.fd(), bytes.data(), bytes.size(), 0);
  if (got > 0) return got;
  return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

void send_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ptrdiff_t sent = send_some(socket, bytes);
    if (sent < 0) throw_ended(socket);
    bytes = bytes.subspan(static_cast<size_t>(sent));
    if (!bytes.empty() && sent == 0) wait_for(socket, POLLOUT, deadline);
  }
}

void receive_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline,
                 const std::function<void()>& between) {
  while (!bytes.empty()) {
    const ptrdiff_t got = receive_some(socket, bytes);
    if (got < 0) throw_ended(socket);
    bytes = bytes.subspan(static_cast<size_t>(got));
    if (bytes.empty() || got > 0) continue;
    if (between) between();
    if (!between || Clock::now() >= deadline)
      wait_for(socket, POLLIN, deadline);
    else
      can_read(socket, std::min(deadline, Clock::now() + kTurn));
  }
}

bool has_ended(const Socket& socket) {
  std::byte next;
  const ssize_t got = ::recv(socket.fd(), &next, 1, MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

bool can_read(const Socket& socket, Deadline deadline) {
  pollfd entry{.fd = socket.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, milliseconds_until(deadline)) > 0;
}

}  // namespace lockstep::parallel::tcp
