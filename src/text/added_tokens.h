// Tokens that are matched in the raw text before anything else: special tokens and others that a user added.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/span.h"

namespace lockstep::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // matches only where no word character is next to it
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
};

// Leftmost-longest matches of a set of tokens. Immutable.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // Splits `text` into tokens and the text between: plain(part) and token(id, part), in order, without empty parts.
  void split(std::string_view text, const std::function<void(Span)>& plain,
             const std::function<void(int32_t, Span)>& token) const;

 private:
  struct Match {
    size_t begin = 0, end = 0;
    const AddedToken* token = nullptr;
  };
  Match find(std::string_view text, size_t from) const;
  size_t next_first_byte(std::string_view text, size_t from) const;

  std::vector<AddedToken> tokens_;
  // A trie: (node, next byte) -> node; node 0 is the root.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> ends_;  // index of the token that ends at a node, or -1
  bool first_byte_[256] = {};
  int only_first_byte_ = -1;  // if all tokens begin with the same byte
};

}  // namespace lockstep::text
