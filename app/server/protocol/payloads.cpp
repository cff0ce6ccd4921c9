#include "server/protocol/payloads.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "server/protocol/api_error.h"
#include "server/protocol/fields.h"

namespace lockstep::server {

namespace {

constexpr std::array<int8_t, 256> kDigits = [] {
  std::array<int8_t, 256> digits{};
  digits.fill(-1);
  constexpr std::string_view kText = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kText.size(); ++i) digits[static_cast<unsigned char>(kText[i])] = static_cast<int8_t>(i);
  return digits;
}();

// What stands in the place of a long text.
std::string mark_of(size_t piece) {
  return fmt::format("\"\\u0000{}\"", piece);
}

}  // namespace

int64_t decode_base64_in_place(std::span<char> text) {
  if (text.size() % 4 != 0) return -1;
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  const size_t digits = text.size() - padding;
  char* out = text.data();
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t word = 0;
    size_t count = 0;
    for (size_t k = 0; k < 4; ++k) {
      word <<= 6;
      if (i + k >= digits) continue;
      const int8_t digit = kDigits[static_cast<unsigned char>(text[i + k])];
      if (digit < 0) return -1;
      word |= static_cast<uint32_t>(digit);
      ++count;
    }
    for (size_t k = 0; k + 1 < count; ++k) *out++ = static_cast<char>(word >> (16 - 8 * k));
  }
  return out - text.data();
}

Payloads::Payloads(HttpRequest request) : body_(std::move(request.body)) {
  request.body.clear();
  std::string& rest = request.body;  // the body without its long texts
  for (size_t at = 0; at < body_.size();) {
    const size_t quote = std::min(body_.find('"', at), body_.size());
    rest.append(body_, at, quote - at);
    if (quote == body_.size()) break;
    size_t end = quote + 1;
    while (end < body_.size() && body_[end] != '"') end += body_[end] == '\\' ? 2 : 1;
    end = std::min(end, body_.size());
    const size_t size = end - quote - 1;
    if (size > kLongText && end < body_.size()) {
      const int64_t bytes = decode_base64_in_place({body_.data() + quote + 1, size});
      if (bytes < 0)
        throw bad_request(fmt::format("A text of {} bytes, at byte {} of the body, is not base64.", size, quote));
      rest += mark_of(pieces_.size());
      pieces_.push_back({quote + 1, static_cast<size_t>(bytes)});
    } else {
      rest.append(body_, quote, std::min(end + 1, body_.size()) - quote);
    }
    at = end + 1;
  }
  json_ = read_body(request, false);
}

std::span<char> Payloads::bytes(const OrderedJson& value, const std::string& name) {
  if (!value.is_string()) throw bad_request(fmt::format("`{}` must be a base64 text.", name), name);
  const auto& text = value.get_ref<const std::string&>();
  if (!text.empty() && text[0] == '\0') {
    const size_t piece = static_cast<size_t>(std::strtoull(text.c_str() + 1, nullptr, 10));
    if (piece >= pieces_.size()) throw bad_request(fmt::format("`{}` is not base64.", name), name);
    return {body_.data() + pieces_[piece].begin, pieces_[piece].size};
  }
  short_.push_back(text);
  const int64_t size = decode_base64_in_place(short_.back());
  if (size < 0) throw bad_request(fmt::format("`{}` is not base64.", name), name);
  return {short_.back().data(), static_cast<size_t>(size)};
}

}  // namespace lockstep::server
