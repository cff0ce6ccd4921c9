// Secrets in texts that a run writes or prints.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

inline constexpr const char* kHiddenSecret = "***";

// Whether what has this name (a flag, a variable, a field of a query) is a secret: names that end in key, token, secret
// or password, but for flags that name a key of a row ("--label-key").
bool names_a_secret(std::string_view name);

// A command or a URL with "***" for each secret that can be told by its name: the value of what
// names_a_secret (`--api-key X`, `API_KEY=X`, `?key=X`), and what stands before the host of a URL
// (`http://user:password@host`).
std::string hide_secrets(const std::string& text);

// `text` with "***" for each of these values, as a server may repeat what it was sent. Values of fewer than four
// characters stay: words have them.
std::string hide_values(std::string text, const std::vector<std::string>& secrets);

}  // namespace lockstep
