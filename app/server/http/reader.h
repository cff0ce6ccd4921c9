// From the bytes of one connection to requests. No I/O and no clock: a session feeds it, and so does the fuzzer.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/http/http.h"

namespace lockstep::server {

struct HttpRefusal {
  int status = 0;
  std::string message;
};

// {"error": {"message", "type", "param": null, "code"}}, as OpenAI's clients read it. `message` may be any bytes.
HttpResponse refusal_response(const HttpRefusal& refusal);

class RequestReader {
 public:
  enum class Status { more, request, refused };
  struct Framing {  // of the request that is being read
    bool head = false, http_1_0 = false, keep_alive = false;
  };

  RequestReader(size_t max_header_bytes, size_t max_body_bytes);
  ~RequestReader();

  void append(std::string_view bytes);
  // Reads on, to the end of one request at most. After `request` comes take(); after `refused` the connection is lost.
  Status parse();
  // The request, once. The bytes behind it are the next one's.
  HttpRequest take();
  // Lets go of all that was read, however much it is: nothing more will be.
  void drop();

  bool begun() const;         // a byte of a request that is not complete has come
  bool has_header() const;    // its headers are complete
  bool expects_continue();    // the client waits for "100 Continue" before it sends the body; true once
  Framing framing() const;    // of what take() gave or will give; everything false while there are no headers
  size_t body_bytes() const;  // read so far
  size_t waiting_bytes() const { return buffer_.size(); }  // not parsed yet
  const HttpRefusal& refusal() const { return refusal_; }

 private:
  class Parser;
  Status refuse(HttpRefusal refusal);
  void skip_empty_lines();
  bool is_header_too_large() const;

  size_t max_header_bytes_, max_body_bytes_;
  std::string buffer_;
  std::unique_ptr<Parser> parser_;  // of the request that has begun
  Framing framing_;
  HttpRefusal refusal_;
};

}  // namespace lockstep::server
