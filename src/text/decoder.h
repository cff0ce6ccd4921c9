// Turns tokens into text: the `decoder` of a tokenizer.json, token by token.
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
  Decoder() = default;  // no decoder: tokens separated by spaces, as in the library
  // FormatError naming the component for any other kind, and for one that after Fuse or ByteLevel would need
  // the whole text; `where` names the file.
  Decoder(const Json& json, const std::string& where);

  // The state of one text that is being decoded.
  class State {
    friend class Decoder;
    struct Step {
      bool begun = false;     // a token has been decoded
      size_t to_strip = 0;    // characters that Strip may still remove at the beginning
      std::string held = {};  // bytes that cannot be returned yet
    };
    std::vector<Step> steps_;
    bool begun_ = false;
  };
  State begin() const;
  // Appends the text that the next token completes: whole characters, and nothing that a later token can change. A run
  // of ByteFallback tokens therefore waits for its end, because one bad byte turns all of it into U+FFFD.
  // `token`: prepared(spelling).
  void push(State& state, std::string_view token, std::string& text) const;
  // Appends what is still held.
  void finish(State& state, std::string& text) const;

  // What can be computed once per token; push() takes this.
  std::string prepared(std::string_view spelling) const;
  // The bytes that a token stands for in the middle of a text, perhaps part of a character.
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
