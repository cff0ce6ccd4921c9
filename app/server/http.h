// HTTP/1.1 for many connections on one thread (Boost.Beast, event driven). Knows nothing of what is served.
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
  int port = 8000;                             // 0: any free one
  size_t max_body_bytes = size_t{64} << 20;    // more: 413
  size_t max_header_bytes = size_t{64} << 10;  // more: 431
  std::chrono::seconds header_timeout{30};     // for all of a request's headers; then the connection is closed
  std::chrono::seconds body_timeout{120};      // for its body: 408
  std::chrono::seconds idle_timeout{75};       // between requests of a kept connection
  std::chrono::seconds write_timeout{120};     // a client that reads nothing for so long is dropped
  size_t max_pending_bytes = size_t{8} << 20;  // written but not yet taken by a client; more: it is dropped
  size_t max_connections = 8192;               // more: 503 and closed
};

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
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// The way back to one client, once per request. All functions may be called from any thread and never block; after the
// client has gone they do nothing.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void send(HttpResponse response) = 0;      // the whole answer
  virtual void begin_stream(HttpResponse head) = 0;  // head.body must be empty; then any number of:
  virtual void write(std::string chunk) = 0;         // one chunk, sent at once
  virtual void end_stream() = 0;
  // Called once, on the server's thread, if the client goes away before the answer is complete.
  virtual void on_disconnect(std::function<void()> callback) = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, std::shared_ptr<Responder>)>;  // on the server's thread

  // Binds and listens at once. ConfigError: the address cannot be used. What the handler throws becomes a 500.
  HttpServer(HttpOptions options, Handler handler);
  ~HttpServer();

  int port() const;
  void run();                             // serves on this thread until stop()
  void post(std::function<void()> task);  // runs it on the server's thread; from any thread
  void post_after(std::chrono::milliseconds delay, std::function<void()> task);
  void close_listener();  // no new connections; those that are open go on
  void stop();            // from any thread; open connections are closed
  size_t connections() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::server
