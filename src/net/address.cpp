#include <fmt/format.h>

#include <charconv>

#include "core/hidden_secrets.h"
#include "net/http_client.h"

namespace lockstep::net {

namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& where, const std::string& what,
                         const std::string& attempt = {}) {
  throw ConfigError({.what = what,
                     .where = where,
                     .got = hide_secrets(std::string(text)),
                     .wanted = "HOST:PORT",
                     .attempt = attempt});
}

// What stands before the host of an address, decoded.
std::string user_of(std::string_view encoded, const std::string& where) {
  std::string user;
  for (size_t i = 0; i < encoded.size(); ++i) {
    if (encoded[i] != '%') {
      user += encoded[i];
      continue;
    }
    const std::string_view digits = encoded.substr(i + 1, 2);
    unsigned value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() < 2 || error != std::errc() || end != digits.data() + 2)
      refuse("***@", where, "a % in a user or password is followed by two hexadecimal digits", "%25 for a %");
    user += static_cast<char>(value);
    i += 2;
  }
  if (user.find(':') == std::string::npos) user += ':';
  return user;
}

}  // namespace

std::string Address::authority() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", ipv6 ? "[" : "", host, ipv6 ? "]" : "", port);
}

std::string Address::target(std::string_view path) const {
  const char* const join = query.empty() ? "" : path.find('?') == path.npos ? "?" : "&";
  return fmt::format("{}{}{}{}", prefix, path, join, query);
}

std::string Address::text(std::string_view path) const {
  return hide_secrets(authority() + target(path));
}

void require_one_authorization(const Address& address, const std::string& api_key, const std::string& where) {
  if (address.user.empty() || api_key.empty()) return;
  throw ConfigError({.what = "a server is told who asks by a user or by a key",
                     .where = where,
                     .got = "both: a user in its address, and a key",
                     .attempt = "one without the other"});
}

Address parse_address(std::string_view text, const std::string& where) {
  constexpr std::string_view kHttp = "http://";
  if (text.starts_with("https://"))
    refuse(text, where, "a server behind TLS cannot be reached",
           "a tunnel (ssh -L, stunnel) to it and the tunnel's HOST:PORT");
  std::string_view rest = text;
  const bool has_scheme = rest.starts_with(kHttp);
  if (has_scheme) rest.remove_prefix(kHttp.size());
  Address address;
  if (const size_t at = rest.substr(0, rest.find_first_of("/?")).rfind('@'); at != rest.npos) {
    if (!has_scheme)
      refuse("***" + std::string(rest.substr(at)), where, "a user and a password need http:// before them",
             "http://USER:PASSWORD@HOST:PORT");
    address.user = user_of(rest.substr(0, at), where);
    rest.remove_prefix(at + 1);
  }
  if (const size_t question = rest.find('?'); question != rest.npos) {
    address.query = rest.substr(question + 1);
    rest = rest.substr(0, question);
  }
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
