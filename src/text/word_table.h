// Strings to numbers, for the vocabulary: one block of memory, open addressing, no allocation to look something up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

class WordTable {
 public:
  // Room for `num_words` without growing.
  explicit WordTable(size_t num_words = 0);

  // False, and nothing is done, when the word is there already.
  bool insert(std::string_view word, int32_t value);
  // -1 when the word is not there.
  int32_t find(std::string_view word) const;
  size_t size() const { return num_words_; }

 private:
  struct Slot {
    uint32_t tag = 0;  // upper half of the hash
    uint32_t length = 0;
    uint64_t begin = 0;
    int32_t value = -1;  // -1: empty
  };
  void grow(size_t num_slots);

  std::string bytes_;  // all words
  std::vector<Slot> slots_;
  size_t num_words_ = 0;
};

}  // namespace lockstep::text
