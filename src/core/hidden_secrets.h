// Secrets in texts that a run writes or prints.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

inline constexpr const char* kHiddenSecret = "***";

// A command or a URL with "***" for each secret that can be told by its name: the value of a flag, variable or query
// whose name ends in key, token, secret or password (`--api-key X`, `API_KEY=X`, `?key=X`), and what stands before the
// host of a URL (`http://user:password@host`).
std::string hide_secrets(const std::string& text);

}  // namespace lockstep
