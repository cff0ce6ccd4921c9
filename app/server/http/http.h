// HTTP/1.1 for many connections on one thread (Boost.Beast, event driven). Knows nothing of what is served.
//
//   threads   run() is the server's thread: the handler, tasks and on_disconnect run there, and must not block it.
//             post(), stop() and every Responder may be used from any thread.
//   order     requests of one connection are answered one after the other; pipelined ones wait.
//   errors    what the transport refuses is answered with {"error": {"message", "type", "param": null, "code"}}.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                                   // 0: any free one
  size_t max_body_bytes = size_t{64} << 20;          // more: 413, without reading it
  size_t max_bodies_bytes = size_t{1} << 30;         // of all bodies being read at once; more: 503
  size_t max_header_bytes = size_t{64} << 10;        // with the request line; more: 431
  std::chrono::milliseconds header_timeout{30'000};  // for all of a request's headers; then the connection is closed
  std::chrono::milliseconds body_timeout{120'000};   // for its body: 408
  std::chrono::milliseconds idle_timeout{75'000};    // between requests of a kept connection
  std::chrono::milliseconds write_timeout{120'000};  // a client that takes nothing for so long is dropped
  std::chrono::milliseconds linger_timeout{2'000};   // to read the last answer in, before the connection is closed
  // A stream may have more than max_pending_bytes that its client has not taken yet; but what is beyond them must be
  // taken within pending_timeout, or the client is dropped. At once if all streams together have more than
  // max_unsent_bytes.
  size_t max_pending_bytes = size_t{8} << 20;
  std::chrono::milliseconds pending_timeout{10'000};
  size_t max_unsent_bytes = size_t{1} << 30;
  size_t max_connections = 8192;  // more: 503 and closed
};

// Well formed: the path starts with '/' (or is "*" of OPTIONS) and is UTF-8 without NUL, header values have no control
// characters, the body is complete.
struct HttpRequest {
  std::string method, path, query;  // "POST", "/v1/completions" (percent-decoded), "a=b" (as it came)
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;

  std::string_view header(std::string_view name) const;               // case-insensitive; empty when absent
  std::optional<std::string> parameter(std::string_view name) const;  // of the query, decoded
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";                  // empty: no such header
  std::vector<std::pair<std::string, std::string>> headers = {};  // control characters in values become spaces
  std::shared_ptr<const void> held = {};  // of a whole answer: let go of when the client has taken it, or has gone
};

// The way back to one client, once per request. All functions may be called from any thread and never block; after the
// client has gone, the answer is complete or the server is destroyed they do nothing. What is written in one turn of
// the server's loop goes out in one system call. A Responder that is destroyed before its answer was begun sends a 500;
// before its stream has ended: the connection is cut, so that the client sees it.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void send(HttpResponse response) = 0;      // the whole answer; std::logic_error once a stream has begun
  virtual void begin_stream(HttpResponse head) = 0;  // head.body must be empty; then any number of:
  virtual void write(std::string chunk) = 0;         // one chunk, sent at once; std::logic_error before begin_stream
  virtual void end_stream() = 0;
  // Called once, on the server's thread, if the client goes away before the answer is complete (send, end_stream); a
  // client that closes its sending side has gone. Must not throw. At once if it has gone already; at stop() too.
  virtual void on_disconnect(std::function<void()> callback) = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, std::shared_ptr<Responder>)>;  // on the server's thread

  // Binds and listens at once. Raises the process' limit of open files towards max_connections as far as it may.
  // ConfigError: the address cannot be used. What the handler throws becomes a 500 (or cuts a stream that has begun).
  HttpServer(HttpOptions options, Handler handler);
  ~HttpServer();  // after run() has returned; Responders may outlive it

  int port() const;
  void run();                             // serves on this thread until stop(); once. What a task throws leaves it
  void post(std::function<void()> task);  // runs it on the server's thread; from any thread
  void post_after(std::chrono::milliseconds delay, std::function<void()> task);
  void close_listener();       // no new connections; those that are open go on. From any thread
  void stop();                 // from any thread; open connections are closed
  size_t connections() const;  // open now

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::server
