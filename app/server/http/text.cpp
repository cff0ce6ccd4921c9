#include "server/http/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <ctime>

namespace lockstep::server {

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
}

// A line break in a value would be read as another header.
std::string one_line(std::string value) {
  std::replace_if(
      value.begin(), value.end(), [](char c) { return (c >= 0 && c < ' ') || c == 0x7F; }, ' ');
  return value;
}

// "Sun, 06 Nov 1994 08:49:37 GMT", whatever the locale.
std::string http_date() {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm t{};
  gmtime_r(&now, &t);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[t.tm_wday], t.tm_mday, kMonths[t.tm_mon],
                     t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

}  // namespace

std::optional<std::string> percent_decoded(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += plus_is_space && text[i] == '+' ? ' ' : text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high << 4 | low);
    i += 2;
  }
  return out;
}

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (same_name(key, name)) return value;
  return {};
}

std::optional<std::string> HttpRequest::parameter(std::string_view name) const {
  std::string_view rest = query;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('&'), rest.size());
    const std::string_view pair = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const size_t equals = std::min(pair.find('='), pair.size());
    if (percent_decoded(pair.substr(0, equals), true) != name) continue;
    return percent_decoded(pair.substr(std::min(equals + 1, pair.size())), true);
  }
  return std::nullopt;
}

bool has_no_body(int status) {
  return status / 100 == 1 || status == 204 || status == 304;
}

std::string response_head(const HttpResponse& response, const HeadFraming& framing) {
  const auto phrase = boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(response.status));
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", response.status,
                                 std::string_view(phrase.data(), phrase.size()), http_date());
  if (!response.content_type.empty()) head += "Content-Type: " + one_line(response.content_type) + "\r\n";
  for (const auto& [name, value] : response.headers) head += one_line(name) + ": " + one_line(value) + "\r\n";
  if (framing.chunked) head += "Transfer-Encoding: chunked\r\n";
  if (!framing.stream && !has_no_body(response.status)) {
    head += fmt::format("Content-Length: {}\r\n", response.body.size());
  }
  if (framing.close) head += "Connection: close\r\n";
  if (framing.announce_keep_alive) head += "Connection: keep-alive\r\n";
  return head += "\r\n";
}

}  // namespace lockstep::server
