// Cuts text into the pieces that byte-pair encoding works on alone: the `pre_tokenizer` of a tokenizer.json.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/json.h"
#include "text/aligned_text.h"
#include "text/text_pattern.h"

namespace lockstep::text {

// Split, ByteLevel, Digits, Metaspace, Whitespace, WhitespaceSplit and sequences of these. Immutable.
class PreTokenizer {
 public:
  PreTokenizer() = default;  // one piece
  // FormatError naming the component for any other kind, and for a step behind ByteLevel; `where` names the file.
  PreTokenizer(const Json& json, const std::string& where);

  // What is cut, and memory that is used again from text to text.
  struct Work {
    TextView text;             // in: the text. out: what the pieces are ranges of, perhaps changed
    std::vector<Span> pieces;  // out: in order, none of them empty

   private:
    friend class PreTokenizer;
    AlignedText changed, spare;
    std::vector<Span> matches, next;
  };
  // ResourceError: an expression of the file needs too long for this text.
  void split(Work& work) const;

  bool byte_level() const { return byte_level_; }  // pieces are spelled in the byte-level alphabet for the model
  bool needs_origins() const { return needs_origins_; }

 private:
  enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  struct Split {
    TextPattern pattern;
    Behavior behavior;
    bool invert;
  };
  struct Digits {
    bool individual;
  };
  struct PrefixSpace {};  // ByteLevel's add_prefix_space
  struct Metaspace {
    std::string replacement;
    enum class Prepend { never, first, always } prepend;
  };
  struct WhiteSpace {
    bool words;  // Whitespace: \w+|[^\w\s]+; else WhitespaceSplit
  };
  using Step = std::variant<Split, Digits, PrefixSpace, Metaspace, WhiteSpace>;

  void add_step(const Json& json, const std::string& where);
  void add_split(const JsonObject& step);
  void add_metaspace(const JsonObject& step);
  static void find(const Step& step, std::string_view text, std::vector<Span>& matches, SearchBudget& budget);
  static void cut(Behavior behavior, bool invert, Span piece, Work& work);
  static void prefix(const Step& step, Work& work);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool needs_origins_ = false;
};

}  // namespace lockstep::text
