// Large base64 texts inside a JSON body, decoded where they lie: a body of gigabytes is never held twice.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"
#include "server/http/http.h"

namespace lockstep::server {

class Payloads {
 public:
  // Takes the body over. ApiError 400 as read_body, and for a text of more than kLongText bytes that is not base64. The
  // texts of more than kLongText bytes become numbers in json(): the place of their bytes in `payloads`.
  static constexpr size_t kLongText = 4096;
  explicit Payloads(HttpRequest request);

  const OrderedJson& json() const { return json_; }
  // The decoded bytes of a base64 field; `value` is the field's value in json(), a number for a long text or the text
  // itself. ApiError 400 naming the field.
  std::span<char> bytes(const OrderedJson& value, const std::string& name);

 private:
  struct Piece {
    size_t begin = 0, size = 0;
  };
  std::string body_;
  std::vector<Piece> pieces_;
  std::deque<std::string> short_;  // decoded; they stay where they are
  OrderedJson json_;
};

// Decodes base64 (RFC 4648, with padding; no other characters) into the beginning of the same memory; returns the
// number of bytes. -1: it is something else.
int64_t decode_base64_in_place(std::span<char> text);

}  // namespace lockstep::server
