#include "core/hidden_secrets.h"

#include <algorithm>
#include <cctype>

namespace lockstep {

namespace {

// What flags call a key of a row; any other key is a secret.
constexpr const char* kRowKeys[] = {"-input-key",  "-label-key",    "-length-key", "-metadata-key", "-prompt-key",
                                    "-reward-key", "-response-key", "-tool-key",   "-teacher-key"};

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
}

size_t skip(const std::string& text, size_t at, const auto& is_part) {
  while (at < text.size() && is_part(text[at])) ++at;
  return at;
}

// The end of the value that begins at `begin`: behind its second quote, or where the word ends.
size_t end_of_value(const std::string& text, size_t begin) {
  if (begin < text.size() && (text[begin] == '"' || text[begin] == '\'')) {
    const size_t quote = text.find(text[begin], begin + 1);
    return quote == std::string::npos ? text.size() : quote + 1;
  }
  return std::min(text.find_first_of(" \t\n&\"'", begin), text.size());
}

// Where the value of the name text[begin, end) begins; `end` itself: it has none.
size_t begin_of_value(const std::string& text, size_t begin, size_t end) {
  if (end < text.size() && text[end] == '=') return end + 1;
  return text[begin] == '-' ? skip(text, end, [](char c) { return c == ' ' || c == '\t'; }) : end;
}

}  // namespace

bool names_a_secret(std::string_view name) {
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto ends_with = [&](const char* end) { return lower.ends_with(end); };
  if (lower.starts_with("--") && std::ranges::any_of(kRowKeys, ends_with)) return false;
  return ends_with("key") || ends_with("token") || ends_with("secret") || ends_with("password");
}

std::string hide_secrets(const std::string& text) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    if (text.compare(at, 3, "://") == 0) {
      const size_t host = text.find_first_of("/@ \t\n\"'", at + 3);
      shown += "://";
      at += 3;
      if (host != std::string::npos && text[host] == '@') {
        shown += kHiddenSecret;
        at = host;
      }
      continue;
    }
    const size_t end = skip(text, at, is_name);
    if (end == at) {
      shown += text[at++];
      continue;
    }
    const size_t value = begin_of_value(text, at, end), behind = end_of_value(text, value);
    const bool hides = value > end && behind > value && names_a_secret(text.substr(at, end - at));
    shown += text.substr(at, (hides ? value : end) - at);
    if (hides) shown += kHiddenSecret;
    at = hides ? behind : end;
  }
  return shown;
}

std::string hide_values(std::string text, const std::vector<std::string>& secrets) {
  constexpr size_t kLeast = 4;
  const std::string_view hidden = kHiddenSecret;
  for (const std::string& secret : secrets)
    for (size_t at = 0; secret.size() >= kLeast && (at = text.find(secret, at)) != std::string::npos;
         at += hidden.size())
      text.replace(at, secret.size(), hidden);
  return text;
}

}  // namespace lockstep
