// text: strings to tokens and masks, and back.
//
//   includes    core only
//   memory      a Tokenizer owns its tables and is immutable after loading; share it freely between threads
//   threads     encode / decode are const and re-entrant
//
// This header: `tokenizer.json` of the Hugging Face tokenizers library, BPE. Ids, spans and decoded text equal the
// library's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/decoder.h"
#include "text/span.h"

namespace lockstep::text {

struct Encoding {
  std::vector<int32_t> ids;
  // Of each token: the bytes of the input it stands for, in whole characters, so that the tokens of one character have
  // the same span. Normalization moves spans as in the library. {0, 0}: a token that add_special put there.
  std::vector<Span> spans;
};

class Tokenizer {
 public:
  // Reads DIR/tokenizer.json. Supported:
  //   model           BPE: both merge spellings, byte_fallback, unk_token, fuse_unk, ignore_merges
  //   normalizer      NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Lowercase
  //   pre_tokenizer   Split, ByteLevel, Digits, Metaspace, Whitespace, WhitespaceSplit
  //   post_processor  ByteLevel, TemplateProcessing
  //   decoder         ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace
  //   added_tokens    special, normalized, lstrip, rstrip, single_word
  // and Sequence of these. Anything else is a FormatError that names the component. `truncation` and `padding` do
  // nothing, as in transformers, which sets both anew at every call.
  static Tokenizer load(const std::string& directory);
  static Tokenizer parse(std::string_view json, const std::string& where);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Special tokens written in the text become their ids. add_special: those the post-processor puts around a text too.
  // DataError unless the text is UTF-8. O(n log n) in the bytes of the text at worst, with expressions other than those
  // of text/split_scanner.h as long as PCRE2 takes.
  std::vector<int32_t> encode(std::string_view utf8, bool add_special = false) const;
  Encoding encode_with_spans(std::string_view utf8, bool add_special = false) const;
  // Special tokens are written out unless `skip_special`. Ids above the vocabulary, which a model with a padded head
  // can sample, stand for nothing, as in the library; negative ids are a DataError. Bytes that are no UTF-8 become
  // U+FFFD, as in the library.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  int64_t vocab_size() const;  // highest id + 1
  std::optional<int32_t> token_id(std::string_view token) const;
  bool is_special(int32_t id) const;
  // The raw bytes one token stands for in the middle of a text (a part of a character, perhaps); special tokens give
  // their text, ids above the vocabulary nothing.
  std::string_view token_bytes(int32_t id) const;
  // The token as tokenizer.json spells it (of a normalized added token: normalized, as in the library); nothing for ids
  // above the vocabulary.
  std::string_view spelling(int32_t id) const;

 private:
  friend class StreamingDecoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Text of a growing list of tokens: push() returns what can be shown, never half a character; finish() returns the
// rest, and the next text may begin. All parts together are what Tokenizer::decode gives. The tokenizer must outlive
// it.
class StreamingDecoder {
 public:
  StreamingDecoder(const Tokenizer& tokenizer, bool skip_special);
  std::string push(int32_t id);  // DataError for a negative id
  std::string finish();

 private:
  friend class Tokenizer;
  void push(int32_t id, std::string& text);

  const Tokenizer* tokenizer_;
  bool skip_special_;
  Decoder::State state_;
};

}  // namespace lockstep::text
