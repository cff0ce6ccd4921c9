// net: other processes. Servers that are asked over HTTP, and programs that are started and watched.
//
//   includes    core only
//   memory      a client owns its connections; an answer is a value
//   threads     a client has one thread of its own; its functions may be called from any other
//
// This header: an HTTP/1.1 client (Boost.Beast). Connections are kept and used again; every request has a deadline, a
// limit for its answer's size, and can be cancelled.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.h"

namespace lockstep::net {

// No whole answer came: refused, cut, too slow, too large, not HTTP.
class Unreachable : public ResourceError {
  using ResourceError::ResourceError;
};

struct Address {
  std::string host;
  int port = 80;
  std::string prefix = {};  // of every path: "/engine"; empty, as a rule
  std::string query = {};   // of every path: "key=K"; empty, as a rule
  std::string user = {};    // "USER:PASSWORD", sent with every request as Basic authentication (RFC 7617); empty: none

  std::string authority() const;  // "HOST:PORT"
  // What a request for this path, which may have a query of its own, asks for: "/PREFIX/PATH?QUERY".
  std::string target(std::string_view path) const;
  // "HOST:PORT/PREFIX/PATH?QUERY" for messages: secrets in it are ***, and `user` is left out.
  std::string text(std::string_view path = {}) const;
  bool operator==(const Address&) const = default;
};
// "HOST:PORT", "[::1]:PORT", "http://HOST:PORT/PREFIX?QUERY", "http://USER:PASSWORD@HOST:PORT/PREFIX" (percent-encoded
// where they have one of /:@%). ConfigError naming `where`, with secrets as ***; https is refused by name: the build
// links no TLS, and a tunnel to the server gives it.
Address parse_address(std::string_view text, const std::string& where);
// ConfigError naming `where`: a request has one Authorization, so an address with a user and a key contradict each
// other.
void require_one_authorization(const Address& address, const std::string& api_key, const std::string& where);

struct HttpRequest {
  std::string method = "GET";
  std::string path = "/";  // with its query
  std::string body = {}, content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::chrono::milliseconds connect_timeout{10'000};  // to find the host and to connect
  std::chrono::milliseconds timeout{60'000};          // from the beginning to the last byte
  size_t max_body_bytes = size_t{256} << 20;          // of the answer; more: Unreachable
  // On a connection of its own, and never sent twice: for what changes the server. Otherwise a kept connection that
  // ends before a byte of the answer is replaced by a new one, on which the request is sent again.
  bool once = false;
};

struct HttpAnswer {
  int status = 0;
  std::string content_type;
  std::string body;  // unless ok(): with *** for each secret that the request had
  bool ok() const { return status >= 200 && status < 300; }
};

class HttpClient {
 public:
  using Id = uint64_t;
  using Outcome = std::variant<HttpAnswer, std::exception_ptr>;  // the latter: Unreachable
  using OnDone = std::function<void(Outcome)>;
  using OnBytes = std::function<void(std::string_view)>;

  explicit HttpClient(size_t max_idle = 256);  // kept connections of each address
  ~HttpClient();                               // requests in flight are dropped
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Calls on_done once, on the client's thread, which it must not block. `on_bytes`, if given, gets the body of an
  // answer that is ok() piece by piece, also on that thread; the answer's body is empty then.
  Id send(const Address& to, HttpRequest request, OnDone on_done, OnBytes on_bytes = {});
  // Ends the request and its connection. A call of its on_done that has begun goes on; none begins afterwards.
  void cancel(Id id);
  // Sends and waits. Unreachable. Not from the client's thread.
  HttpAnswer ask(const Address& to, HttpRequest request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::net
