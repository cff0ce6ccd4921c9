// JSON written by appending to a string: what is sent for every token builds no tree.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::server {

// In quotes, escaped. Bytes that are no UTF-8 become U+FFFD.
void append_string(std::string& out, std::string_view text);
std::string json_string(std::string_view text);

// The shortest text that reads back as this double, always with a point or an exponent, so that readers see a real.
// What is no number, or below, becomes -9999.0, as OpenAI's routes send a log-probability of zero.
void append_logprob(std::string& out, float value);

void append_ids(std::string& out, std::span<const int32_t> ids);  // [1,2,3]
std::string ids_json(std::span<const int32_t> ids);
// ,"token_versions":[0,null]: the adapter version of each token, null for the base.
void append_versions(std::string& out, std::span<const int64_t> versions);
void append_bytes(std::string& out, std::string_view bytes);  // [226,130,172]

std::string valid_utf8(std::string_view bytes);  // bytes that are no UTF-8 become U+FFFD
int64_t num_characters(std::string_view utf8);

}  // namespace lockstep::server
