// HTTP text: URL escapes, header names, the head of an answer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/http/http.h"

namespace lockstep::server {

// "%41" -> "A"; with `plus_is_space` as in queries. Nothing if an escape is malformed.
std::optional<std::string> percent_decoded(std::string_view text, bool plus_is_space = false);
bool same_name(std::string_view a, std::string_view b);  // compares header names: ASCII, case-insensitive

struct HeadFraming {
  bool stream = false;               // no Content-Length, but chunks or (close) the end of the connection
  bool chunked = false;              // of a stream
  bool close = false;                // the connection ends with the answer
  bool announce_keep_alive = false;  // HTTP/1.0
};
// Status line, headers and the empty line; Content-Length is that of response.body.
std::string response_head(const HttpResponse& response, const HeadFraming& framing);
bool has_no_body(int status);  // 1xx, 204, 304: neither a body nor its length

}  // namespace lockstep::server
