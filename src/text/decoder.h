// From the spellings of tokens to text: the `decoder` of a tokenizer.json, token by token.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/json.h"
#include "text/text_pattern.h"

namespace lockstep::text {

// ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and sequences of these. Immutable.
class Decoder {
 public:
  Decoder() = default;  // none: tokens with spaces between them, as in the library
  // FormatError naming the component for any other kind, and for one that cannot work behind Fuse or ByteLevel without
  // the whole text; `where` names the file.
  Decoder(const Json& json, const std::string& where);

  // One text that is being decoded.
  class State {
    friend class Decoder;
    struct Step {
      bool begun = false;     // a token came by
      size_t to_strip = 0;    // characters that Strip may still take at the beginning
      std::string held = {};  // what cannot be shown yet
    };
    std::vector<Step> steps_;
    bool begun_ = false;
  };
  State begin() const;
  // Appends what the next token makes known of the text: whole characters, and nothing that a later token can change.
  // A run of ByteFallback's tokens therefore waits for its end: one bad byte makes all of it U+FFFD.
  // `token`: prepared(spelling).
  void push(State& state, std::string_view token, std::string& text) const;
  // Appends the rest.
  void finish(State& state, std::string& text) const;

  // What can be done for a token once and for all; push() takes this.
  std::string prepared(std::string_view spelling) const;
  // The bytes a token stands for in the middle of a text, perhaps a part of a character.
  std::string bytes_of(std::string_view spelling) const;

 private:
  struct ByteLevel {};
  struct Replace {
    TextPattern pattern;
    std::string text;
  };
  struct ByteFallback {};
  struct Fuse {};
  struct Strip {
    std::string character;
    size_t start, stop;
    bool fused;  // of the whole text, else of every token
  };
  struct Metaspace {
    TextPattern pattern;
    bool drop_first;  // what the first token has of it vanishes, else it is a space
  };
  using Step = std::variant<ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace>;

  void add_step(const Json& json, const std::string& where);
  void emit(size_t step, State& state, std::string_view token, std::string& text) const;
  void flush_bytes(size_t step, State& state, std::string& text) const;
  void emit_characters(size_t step, State& state, std::string_view bytes, std::string& text) const;
  void strip_stream(size_t step, State& state, std::string_view part, std::string& text) const;

  std::vector<Step> steps_;
  bool present_ = false;
  bool fused_ = false;
};

}  // namespace lockstep::text
