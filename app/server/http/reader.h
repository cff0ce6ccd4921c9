// Turns the bytes of one connection into requests. No I/O and no clock: a session feeds it, and so does the fuzzer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http.h"

namespace lockstep::server {

struct HttpRefusal {
  int status = 0;
  std::string message;
};

// {"error": {"message", "type", "param": null, "code"}}, the format of OpenAI's clients. `message` may be any bytes.
HttpResponse refusal_response(const HttpRefusal& refusal);

// Bodies that may be larger than the others: HttpOptions::large_paths.
struct LargeBodies {
  std::vector<std::string> paths = {};
  size_t max_bytes = 0;
  std::function<bool(const HttpRequest& head)> admits = {};
};

class RequestReader {
 public:
  enum class Status { more, request, refused };
  struct Framing {  // of the current request
    bool head = false, http_1_0 = false, keep_alive = false;
  };

  RequestReader(size_t max_header_bytes, size_t max_body_bytes, LargeBodies large = {});
  ~RequestReader();

  void append(std::string_view bytes);
  // Parses up to the end of one request. After `request` call take(); after `refused` the connection is unusable.
  Status parse();
  // The request, once. The bytes after it belong to the next one.
  HttpRequest take();
  // Frees all that was read: nothing more will be parsed.
  void drop();

  bool begun() const;         // an incomplete request has begun
  bool has_header() const;    // the headers of the current request are complete
  bool expects_continue();    // the client waits for "100 Continue" before it sends the body; true only once
  Framing framing() const;    // of what take() returned or will return; all false before the headers
  size_t body_bytes() const;  // read so far
  bool is_large() const;      // the current request may have a larger body
  size_t waiting_bytes() const { return buffer_.size(); }  // not parsed yet
  const HttpRefusal& refusal() const { return refusal_; }

 private:
  class Parser;
  Status refuse(HttpRefusal refusal);
  void skip_empty_lines();
  bool is_header_too_large() const;

  size_t max_header_bytes_, max_body_bytes_;
  const LargeBodies large_;
  std::string buffer_;
  std::unique_ptr<Parser> parser_;  // of the request that has begun
  Framing framing_;
  HttpRefusal refusal_;
};

}  // namespace lockstep::server
