// Byte-pair encoding of one piece of text: the pair of lowest rank is merged, the leftmost of equal ones first, until
// no pair is left. Source: arXiv 1508.07909; ids equal those of Hugging Face `tokenizers`.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/word_table.h"

namespace lockstep::text {

struct BpeOptions {
  bool byte_level = false;        // merging starts from bytes; else from characters
  std::optional<int32_t> unk_id;  // for unknown strings; without it they are dropped, as in the library
  bool fuse_unk = false;          // one unk token for a run of unknown characters
  bool ignore_merges = false;     // a piece that is a token as a whole becomes that token
  bool byte_fallback = false;     // an unknown character becomes the tokens <0x..> of its bytes, if all exist
};

class Bpe {
 public:
  struct Merge {
    int32_t left, right, result;
  };
  // words: the token of every string that pieces may contain (raw bytes when byte_level). merges: in order of rank; for
  // a pair that occurs twice the later rank counts, as in the library. byte_tokens: <0x00> to <0xFF>, -1 where there is
  // none.
  Bpe(WordTable words, int32_t vocab_size, const std::vector<Merge>& merges, BpeOptions options,
      const std::array<int32_t, 256>& byte_tokens);

  // Memory that encode() reuses from piece to piece; one per thread.
  class Scratch {
    friend class Bpe;
    struct Symbol {
      int32_t id;
      uint32_t length;         // bytes of the piece
      int32_t previous, next;  // of a long piece
    };
    struct Ranked {
      uint32_t rank;
      int32_t result;
    };
    struct Candidate {
      uint32_t rank;
      int32_t place, left, right, result;
    };
    std::vector<Symbol> symbols_;
    std::vector<Ranked> pairs_;
    std::vector<Candidate> heap_;
  };

  // Appends the ids of `piece` (not empty, less than 2 GiB), and to `lengths`, unless it is nullptr, the number of
  // bytes of each. O(n log n) in its bytes. As in the library, dropped characters have no bytes, so that later tokens
  // of the piece appear to be where those were.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
              std::vector<uint32_t>* lengths) const;

 private:
  using Ranked = Scratch::Ranked;
  struct Slot {
    uint64_t pair = kNoPair;
    Ranked ranked{};
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static constexpr uint32_t kNoRank = ~uint32_t{0};

  void merge(std::string_view piece, Scratch& scratch) const;
  void add_bytes(std::string_view piece, Scratch& scratch) const;
  void add_characters(std::string_view piece, Scratch& scratch) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;
  void push_pair(Scratch& scratch, int32_t place) const;
  void set_merge(const Merge& merge, uint32_t rank);
  Ranked find_merge(int32_t left, int32_t right) const;

  WordTable words_;
  std::vector<Slot> merges_;  // open addressing
  BpeOptions options_;
  std::array<int32_t, 256> first_ids_{};  // of bytes; when not byte_level of ASCII characters
  std::array<int32_t, 256> byte_tokens_{};
  // Whether merging turns a token's whole text into that token: unknown yet, yes, or no. Determined once per token by
  // the first thread that needs it; every thread would find the same.
  enum Whole : uint8_t { kNotSeen, kItself, kOther };
  mutable std::vector<std::atomic<uint8_t>> whole_;
};

}  // namespace lockstep::text
