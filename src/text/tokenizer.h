// text: strings to tokens and back, and rows of datasets.
//
//   includes    core only
//   memory      a Tokenizer owns its tables and is immutable after loading; share it freely between threads
//   threads     encode / decode are const and re-entrant
//
// This header: `tokenizer.json` of the Hugging Face tokenizers library, byte-level BPE. Ids equal the library's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

class Tokenizer {
 public:
  // Reads DIR/tokenizer.json. Supported: model BPE (both merge spellings, ignore_merges), byte-level pre-tokenizer with
  // GPT-2's expression, Digits, sequences of these, added and special tokens (lstrip, rstrip, single_word, normalized),
  // ByteLevel decoder and post-processor. Anything else is a FormatError that names the component.
  static Tokenizer load(const std::string& directory);
  static Tokenizer parse(std::string_view json, const std::string& where);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Special tokens written in the text become their ids; none are added around it. DataError unless the text is UTF-8.
  std::vector<int32_t> encode(std::string_view utf8) const;
  // Special tokens are written out unless `skip_special`. Ids above the vocabulary, which a model with a padded head
  // can sample, stand for nothing, as in the library; negative ids are a DataError. Bytes that are no UTF-8 become
  // U+FFFD, as in the library.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  int64_t vocab_size() const;  // highest id + 1
  std::optional<int32_t> token_id(std::string_view token) const;
  bool is_special(int32_t id) const;
  // The raw bytes one token stands for (a part of a character, perhaps); special tokens give their text, ids
  // above the vocabulary nothing.
  std::string_view token_bytes(int32_t id) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Text of a growing list of tokens: push() returns what can be shown, never half a character; finish() returns the
// rest.
class StreamingDecoder {
 public:
  StreamingDecoder(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}
  std::string push(int32_t id);
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // bytes of an unfinished character
};

}  // namespace lockstep::text
