// tokenizer.json as JSON, but for its two large parts, which never become a tree of JSON values. Internal to text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"

namespace lockstep::text {

struct TokenizerJson {
  Json rest;  // without the entries of model.vocab and model.merges, which are empty here
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // of both spellings
};

// A row is kept for every id, so ids have a limit: four times the largest vocabulary known.
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 20;

// The id; FormatError unless `value` is an integer below kMaxVocabulary.
int32_t checked_id(const Json& value, const std::string& where);

// FormatError: what parse_json refuses; an id or a merge that is malformed.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

}  // namespace lockstep::text
