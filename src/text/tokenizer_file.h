// tokenizer.json as data. Internal to text; the contract is that of text/tokenizer.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/word_table.h"

namespace lockstep::text {

struct TokenizerFile {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  Decoder decoder;
  std::vector<AddedToken> raw_tokens = {};         // found in the raw text
  std::vector<AddedToken> normalized_tokens = {};  // found in what the raw tokens leave, once that is normalized
  // Of every id; empty for an id that no token has.
  std::vector<std::string> spellings = {};    // as in the file; of a normalized added token normalized
  std::vector<std::string> token_bytes = {};  // what the decoder makes of it in the middle of a text
  std::vector<std::string> prepared = {};     // what the decoder takes
  std::vector<bool> known = {}, special = {};
  WordTable ids = WordTable();  // spelling in the file -> id
  std::optional<Bpe> bpe = {};
};

// FormatError names file and component.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& where);

}  // namespace lockstep::text
