// Byte-pair encoding of one piece of text: the pair of lowest rank is merged, the leftmost of equals, until none is
// left. Source: arXiv 1508.07909; ids equal those of Hugging Face `tokenizers`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::text {

struct BpeOptions {
  std::optional<int32_t> unk_id;  // for bytes the vocabulary lacks; without it they vanish, as in the library
  bool fuse_unk = false;          // one for a run of such bytes
  bool ignore_merges = false;     // a piece that is a token as a whole is that token
};

class Bpe {
 public:
  struct Merge {
    int32_t left, right, result;
  };
  // vocabulary: the raw bytes of every byte-level token and its id. merges: in order of rank; of a pair that comes
  // twice the later rank counts, as in the library.
  Bpe(std::unordered_map<std::string, int32_t> vocabulary, const std::vector<Merge>& merges, BpeOptions options);

  // Memory that encode() uses again from piece to piece; one per thread.
  class Scratch {
    friend class Bpe;
    struct Symbol {
      int32_t id, previous, next;
    };
    struct Candidate {
      uint32_t rank;
      int32_t place, left, right, result;
    };
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
  };

  // Appends the ids of `piece`. O(n log n) in its bytes.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Ranked {
    uint32_t rank;
    int32_t result;
  };
  void add_symbols(std::string_view piece, Scratch& scratch) const;
  void push_pair(Scratch& scratch, int32_t place) const;

  std::unordered_map<std::string, int32_t> vocabulary_;
  std::unordered_map<uint64_t, Ranked> merges_;
  BpeOptions options_;
  int32_t byte_ids_[256];
};

}  // namespace lockstep::text
