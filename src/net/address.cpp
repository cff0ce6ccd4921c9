#include <fmt/format.h>

#include <charconv>

#include "net/http_client.h"

namespace lockstep::net {

namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& where, const std::string& what,
                         const std::string& attempt = {}) {
  throw ConfigError(
      {.what = what, .where = where, .got = std::string(text), .wanted = "HOST:PORT", .attempt = attempt});
}

}  // namespace

std::string Address::text() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}{}", ipv6 ? "[" : "", host, ipv6 ? "]" : "", port, prefix);
}

Address parse_address(std::string_view text, const std::string& where) {
  constexpr std::string_view kHttp = "http://";
  if (text.starts_with("https://"))
    refuse(text, where, "a server behind TLS cannot be reached",
           "a tunnel (ssh -L, stunnel) to it and the tunnel's HOST:PORT");
  std::string_view rest = text;
  if (rest.starts_with(kHttp)) rest.remove_prefix(kHttp.size());
  Address address;
  if (const size_t slash = rest.find('/'); slash != rest.npos) {
    address.prefix = rest.substr(slash);
    rest = rest.substr(0, slash);
    while (address.prefix.ends_with('/')) address.prefix.pop_back();
  }
  const size_t colon = rest.rfind(':');
  if (colon == rest.npos || colon == 0) refuse(text, where, "a server's address needs a host and a port");
  std::string_view host = rest.substr(0, colon), port = rest.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port < 1 || address.port > 65535)
    refuse(text, where, "a server's port is a number from 1 to 65535");
  for (const char c : text)
    if (static_cast<unsigned char>(c) <= ' ' || c == 127) refuse(text, where, "an address has no spaces");
  if (host.empty()) refuse(text, where, "a server's address needs a host and a port");
  address.host = host;
  return address;
}

}  // namespace lockstep::net
