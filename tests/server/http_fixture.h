// A server on a free port and clients that may misbehave: they are sockets and bytes.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "server/http/http.h"

namespace lockstep::server::testing {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class Client {
 public:
  // A small receive buffer (bytes) stands for a client that reads slowly.
  explicit Client(int port, int receive_buffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  Client(Client&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), connected_(other.connected_), rest_(std::move(other.rest_)) {}
  ~Client() { close(); }

  bool connected() const { return connected_; }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  void reset() {
    const linger hard{.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  void end_sending() { ::shutdown(socket_, SHUT_WR); }

  // False once the server takes no more.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // What one recv() gives; empty at the end, after a reset, and (timed_out) when nothing comes.
  std::string receive(std::chrono::milliseconds patience = 2s) {
    pollfd ready{.fd = socket_, .events = POLLIN};
    timed_out = ::poll(&ready, 1, static_cast<int>(patience.count())) == 0;
    if (timed_out) return {};
    char bytes[1 << 16];
    const ssize_t size = ::recv(socket_, bytes, sizeof bytes, 0);
    was_reset = size < 0;
    return size > 0 ? std::string(bytes, static_cast<size_t>(size)) : std::string();
  }
  bool timed_out = false, was_reset = false;

  std::string receive_all() {
    std::string all = std::exchange(rest_, {});
    for (std::string bytes = receive(); !bytes.empty(); bytes = receive()) all += bytes;
    return all;
  }

  // Up to and with `mark`; what comes behind it is kept for the next call.
  std::string receive_to(std::string_view mark) {
    size_t end;
    while ((end = rest_.find(mark)) == rest_.npos) {
      const std::string bytes = receive();
      if (bytes.empty()) return std::exchange(rest_, {});
      rest_ += bytes;
    }
    std::string head = rest_.substr(0, end + mark.size());
    rest_.erase(0, head.size());
    return head;
  }

  // Whether the server ends the connection within `patience`, whatever it still sends.
  bool ended(std::chrono::milliseconds patience = 2s) {
    const auto end = Clock::now() + patience;
    while (Clock::now() < end) {
      if (receive(patience).empty()) return !timed_out;
    }
    return false;
  }

  int socket() const { return socket_; }

 private:
  int socket_;
  bool connected_ = false;
  std::string rest_;
};

// Serves until it is destroyed.
class Running {
 public:
  explicit Running(HttpServer::Handler handler, HttpOptions options = {})
      : server(with_free_port(std::move(options)), std::move(handler)), thread_([this] { server.run(); }) {}
  ~Running() { stop(); }

  void stop() {
    if (!thread_.joinable()) return;
    server.stop();
    thread_.join();
  }
  Client connect(int receive_buffer = 0) const { return Client(server.port(), receive_buffer); }
  // The whole answer of a connection that ends with it.
  std::string ask(std::string_view bytes) const {
    Client client = connect();
    client.send(bytes);
    return client.receive_all();
  }

  HttpServer server;

 private:
  static HttpOptions with_free_port(HttpOptions options) {
    options.port = 0;
    return options;
  }
  std::thread thread_;
};

// An event of another thread.
class Signal {
 public:
  void set() { promise_.set_value(); }  // a second time throws
  bool wait(std::chrono::milliseconds patience = 2s) { return future_.wait_for(patience) == std::future_status::ready; }

 private:
  std::promise<void> promise_;
  std::future<void> future_ = promise_.get_future();
};

// Waits for what another thread makes true.
template <class Condition>
bool eventually(const Condition& condition, std::chrono::milliseconds patience = 2s) {
  const auto end = Clock::now() + patience;
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

// Says what it was asked: "POST /path?query body".
inline void echo(HttpRequest request, std::shared_ptr<Responder> responder) {
  const std::string query = request.query.empty() ? "" : "?" + request.query;
  responder->send({.body = request.method + " " + request.path + query + " " + request.body});
}

inline const std::string kEnd = "\r\n\r\n";
inline const std::string kGet = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
inline const std::string kGetAndClose = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

inline std::string post(const std::string& body, const std::string& more = "") {
  return "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + more + "\r\n" + body;
}

}  // namespace lockstep::server::testing
