// tokenizer.json as the tokenizer.ggml.* keys of a GGUF file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/gguf/format.h"
#include "core/fs.h"
#include "core/json.h"

namespace lockstep::checkpoint {

// What tokenizer.json does not say.
struct GgufTokenizerFacts {
  int64_t vocab_size = 0;                             // of the model: rows without a token get a placeholder
  std::vector<int32_t> end_ids;                       // end a sequence; the first three can be named in the file
  std::map<std::string, std::string> special_tokens;  // of tokenizer_config.json: "bos_token" -> "<s>" ...
  std::string chat_template;                          // empty: none
};

// What llama.cpp calls the way a tokenizer cuts text before it merges, from the normalizer and the pre-tokenizer of
// tokenizer.json. FormatError: it has no name for it that is known here, so it would make other tokens.
std::string gguf_pre_tokenizer(const Json& tokenizer, const std::string& where);

// Adds model, pre-tokenizer, tokens and their types, merges, special ids, whether a text begins with BOS, and the chat
// template. Returns notes for the user, a line each. FormatError naming the file and the component: no
// byte-level BPE, or parts of it that llama.cpp does not know.
std::vector<std::string> add_gguf_tokenizer(GgufMetadata& metadata, const fs::Path& tokenizer_json,
                                            const GgufTokenizerFacts& facts);

}  // namespace lockstep::checkpoint
