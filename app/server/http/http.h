// HTTP/1.1 for many connections on one thread (Boost.Beast, event driven). Independent of what is served.
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

struct HttpRequest;

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                            // 0: any free port
  size_t max_body_bytes = size_t{64} << 20;   // a larger body is answered 413 without being read
  size_t max_bodies_bytes = size_t{1} << 30;  // of all bodies being read at once; beyond it 503
  // Bodies of these paths may be larger, and do not count among those. They are read for requests that `admits` says
  // yes to, on the server's thread; the others are answered 401 before their body is read. One such body at a time;
  // 503.
  std::vector<std::string> large_paths = {};
  size_t max_large_body_bytes = 0;
  std::function<bool(const HttpRequest& head)> admits = {};
  size_t max_header_bytes = size_t{64} << 10;        // with the request line; larger: 431
  std::chrono::milliseconds header_timeout{30'000};  // for all headers of a request; then the connection is closed
  std::chrono::milliseconds body_timeout{120'000};   // for its body; then 408
  std::chrono::milliseconds idle_timeout{75'000};    // between requests of a keep-alive connection
  std::chrono::milliseconds write_timeout{120'000};  // a client that reads nothing for this long is dropped
  std::chrono::milliseconds linger_timeout{2'000};   // for the client to read the last answer
  // A client may be more than max_pending_bytes behind its stream, but must read everything beyond them within
  // pending_timeout, or it is dropped; immediately if all streams together are more than
  // max_unsent_bytes behind.
  size_t max_pending_bytes = size_t{8} << 20;
  std::chrono::milliseconds pending_timeout{10'000};
  size_t max_unsent_bytes = size_t{1} << 30;
  size_t max_connections = 8192;  // beyond it new connections get 503 and are closed
};

// Well formed: the path starts with '/' (or is "*" for OPTIONS) and is UTF-8 without NUL, header values have no control
// characters, the body is complete.
struct HttpRequest {
  std::string method, path, query;  // "POST", "/v1/completions" (percent-decoded), "a=b" (undecoded)
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;

  std::string_view header(std::string_view name) const;               // case-insensitive; empty if absent
  std::optional<std::string> parameter(std::string_view name) const;  // from the query, decoded
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";                  // empty: no such header
  std::vector<std::pair<std::string, std::string>> headers = {};  // control characters in values become spaces
  std::shared_ptr<const void> held = {};  // for a whole answer: released when the client has read it, or has gone
};

// The handle for answering one request. All functions may be called from any thread and never block; after the client
// has gone, the answer is complete or the server is destroyed they do nothing. What is written during one iteration of
// the event loop is sent by one system call. A Responder destroyed before its answer began sends a 500; one destroyed
// before its stream ended closes the connection, so that the client notices.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void send(HttpResponse response) = 0;      // the whole answer; std::logic_error once a stream has begun
  virtual void begin_stream(HttpResponse head) = 0;  // head.body must be empty; then any number of:
  virtual void write(std::string chunk) = 0;         // one chunk, sent at once; std::logic_error before begin_stream
  virtual void end_stream() = 0;
  // Called once, on the server's thread, if the client leaves before the answer is complete (send, end_stream); closing
  // its sending side counts as leaving. Must not throw. Called at once if the client has gone already; also at stop().
  virtual void on_disconnect(std::function<void()> callback) = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, std::shared_ptr<Responder>)>;  // on the server's thread

  // Binds and listens. Raises the process' limit of open files towards max_connections as far as permitted.
  // ConfigError: the address cannot be used. An exception of the handler becomes a 500 (or ends a stream).
  HttpServer(HttpOptions options, Handler handler);
  ~HttpServer();  // call after run() has returned; Responders may outlive it

  int port() const;
  void run();                             // serves on this thread until stop(); once. Exceptions of tasks propagate
  void post(std::function<void()> task);  // runs it on the server's thread; from any thread
  void post_after(std::chrono::milliseconds delay, std::function<void()> task);
  void close_listener();       // refuses new connections; open ones continue. From any thread
  void stop();                 // from any thread; closes open connections
  size_t connections() const;  // open connections

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::server
