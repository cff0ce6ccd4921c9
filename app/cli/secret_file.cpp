#include "cli/secret_file.h"

#include <algorithm>

#include "core/error.h"
#include "core/fs.h"

namespace lockstep::cli {

namespace {

constexpr size_t kMaxSecretBytes = 4096;

}  // namespace

std::string read_secret(const std::string& flag, const std::string& path) {
  std::string secret = fs::read_file(path, {}, kMaxSecretBytes);
  constexpr const char* kSpaces = " \t\r\n";
  secret.erase(0, std::min(secret.find_first_not_of(kSpaces), secret.size()));
  secret.erase(secret.find_last_not_of(kSpaces) + 1);
  const bool clean = std::ranges::none_of(secret, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  if (secret.empty() || !clean)
    throw ConfigError({.what = flag + " names a file without a key",
                       .where = path,
                       .got = secret.empty() ? "nothing" : "several lines, or control characters",
                       .wanted = "one line"});
  return secret;
}

Binding secret_file(std::string& target) {
  return {.set = [&target](const std::string& flag, const Values& values) { target = read_secret(flag, values[0]); }};
}

}  // namespace lockstep::cli
