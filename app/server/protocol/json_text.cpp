#include "server/protocol/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/json_escape.h"
#include "core/utf8.h"

namespace lockstep::server {

namespace {

bool is_plain(char byte) {
  return static_cast<uint8_t>(byte) >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7F;
}

template <class Items, class Append>
void append_list(std::string& out, const Items& items, const Append& append) {
  out += '[';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ',';
    append(items[i]);
  }
  out += ']';
}

}  // namespace

void append_string(std::string& out, std::string_view text) {
  if (valid_utf8_prefix(text) < text.size()) return append_string(out, valid_utf8(text));
  out += '"';
  for (size_t place = 0; place < text.size();) {
    size_t end = place;
    while (end < text.size() && is_plain(text[end])) ++end;
    out += text.substr(place, end - place);
    if (end < text.size()) append_json_escape(out, static_cast<uint8_t>(text[end++]));
    place = end;
  }
  out += '"';
}

std::string json_string(std::string_view text) {
  std::string out;
  append_string(out, text);
  return out;
}

void append_logprob(std::string& out, float value) {
  constexpr float kMin = -9999;
  const double shown = std::isnan(value) ? kMin : std::max(value, kMin);
  const size_t begin = out.size();
  fmt::format_to(std::back_inserter(out), "{}", shown);
  if (out.find_first_of(".e", begin) == std::string::npos) out += ".0";
}

void append_ids(std::string& out, std::span<const int32_t> ids) {
  append_list(out, ids, [&](int32_t id) { fmt::format_to(std::back_inserter(out), "{}", id); });
}

std::string ids_json(std::span<const int32_t> ids) {
  std::string out;
  append_ids(out, ids);
  return out;
}

void append_versions(std::string& out, std::span<const int64_t> versions) {
  out += R"(,"token_versions":)";
  append_list(out, versions, [&](int64_t version) {
    if (version < 0)
      out += "null";
    else
      fmt::format_to(std::back_inserter(out), "{}", version);
  });
}

void append_bytes(std::string& out, std::string_view bytes) {
  append_list(out, bytes, [&](char byte) {
    fmt::format_to(std::back_inserter(out), "{}", static_cast<unsigned>(static_cast<uint8_t>(byte)));
  });
}

std::string valid_utf8(std::string_view bytes) {
  std::string text;
  append_lossy(text, bytes);
  return text;
}

int64_t num_characters(std::string_view utf8) {
  return std::ranges::count_if(utf8, begins_character);
}

}  // namespace lockstep::server
