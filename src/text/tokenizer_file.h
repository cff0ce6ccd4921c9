// tokenizer.json as data. Internal to text; the contract is that of text/tokenizer.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"

namespace lockstep::text {

struct TokenizerFile {
  std::vector<AddedToken> raw_tokens;            // found in the raw text
  std::vector<AddedToken> normalized_tokens;     // found in what the raw tokens leave
  std::vector<std::string> token_bytes;          // of every id; empty for an id that no token has
  std::vector<bool> known, special;              // of every id
  std::unordered_map<std::string, int32_t> ids;  // spelling in the file -> id
  PreTokenizer pre_tokenizer;
  Bpe bpe;
};

// FormatError names file and component.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& where);

}  // namespace lockstep::text
