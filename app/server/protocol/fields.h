// Typed access to the fields of a request's JSON object. A null counts as absent. Every refusal is an
// ApiError 400 that names the field.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "server/http/http.h"

namespace lockstep::server {

class Fields {
 public:
  // `body` must outlive it. `inside` precedes the names in errors: "sampling_params.".
  explicit Fields(const OrderedJson& body, std::string inside = "");

  const OrderedJson* find(std::string_view name) const;  // nullptr: absent or null
  bool has(std::string_view name) const { return find(name) != nullptr; }

  // A real without a fraction counts as an integer; a bool is never a number.
  std::optional<int64_t> integer(std::string_view name) const;
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high) const;
  std::optional<double> number(std::string_view name) const;
  // Between low and high; `range` describes the interval: "in [0, 2]".
  std::optional<double> number(std::string_view name, double low, double high, std::string_view range) const;
  std::optional<bool> boolean(std::string_view name) const;
  bool flag(std::string_view name, bool fallback = false) const { return boolean(name).value_or(fallback); }
  std::optional<std::string> string(std::string_view name) const;
  std::string required_string(std::string_view name) const;
  std::optional<std::vector<std::string>> strings(std::string_view name) const;  // one, or a list
  std::optional<std::vector<int32_t>> ids(std::string_view name) const;          // a list of tokens, none negative
  std::optional<Fields> object(std::string_view name) const;

  std::string full_name(std::string_view name) const { return inside_ + std::string(name); }
  const OrderedJson& json() const { return *body_; }
  [[noreturn]] void wrong(std::string_view name, const OrderedJson& got, std::string_view wanted) const;

 private:
  const OrderedJson* body_;
  std::string inside_;
};

inline constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
inline constexpr size_t kMaxJsonValues = size_t{1} << 22;  // in a body; each takes up to 100 bytes

// A list of tokens. ApiError naming `name`.
std::vector<int32_t> read_ids(const OrderedJson& list, const std::string& name);

// The JSON object in a request's body. ApiError 400: not UTF-8, not JSON, nested too deeply, a key twice, too many
// values, not an object; with `must_be_json` also another Content-Type than application/json, as vLLM does.
OrderedJson read_body(const HttpRequest& request, bool must_be_json = true);

}  // namespace lockstep::server
