#include "text/word_table.h"

#include <bit>
#include <cstring>

namespace lockstep::text {

namespace {

constexpr size_t kFewestSlots = 16;

uint64_t load(const char* bytes, size_t size) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, size);
  return word;
}

// The product of two 64-bit numbers, its halves folded together.
uint64_t fold(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash(std::string_view word) {
  constexpr uint64_t kFirst = 0x9E3779B97F4A7C15, kSecond = 0xD6E8FEB86659FD93;
  const char* bytes = word.data();
  size_t size = word.size();
  uint64_t state = kFirst ^ size;
  for (; size > 16; bytes += 8, size -= 8) state = fold(state ^ load(bytes, 8), kSecond);
  // At most 16 left: two words that overlap cover them.
  uint64_t low = 0, high = 0;
  if (size >= 8) {
    low = load(bytes, 8), high = load(bytes + size - 8, 8);
  } else if (size >= 4) {
    low = load(bytes, 4), high = load(bytes + size - 4, 4);
  } else if (size > 0) {
    low = load(bytes, 1) | load(bytes + size / 2, 1) << 8 | load(bytes + size - 1, 1) << 16;
  }
  return fold(low ^ state, high ^ kSecond);
}

}  // namespace

WordTable::WordTable(size_t num_words) {
  grow(std::bit_ceil(std::max(kFewestSlots, num_words * 2)));
}

void WordTable::grow(size_t num_slots) {
  std::vector<Slot> old = std::move(slots_);
  slots_.assign(num_slots, {});
  const size_t mask = num_slots - 1;
  for (const Slot& slot : old) {
    if (slot.value < 0) continue;
    size_t place = hash(std::string_view(bytes_).substr(slot.begin, slot.length)) & mask;
    while (slots_[place].value >= 0) place = (place + 1) & mask;
    slots_[place] = slot;
  }
}

bool WordTable::insert(std::string_view word, int32_t value) {
  if (find(word) >= 0) return false;
  if ((num_words_ + 1) * 2 > slots_.size()) grow(slots_.size() * 2);
  const uint64_t code = hash(word);
  const size_t mask = slots_.size() - 1;
  size_t place = code & mask;
  while (slots_[place].value >= 0) place = (place + 1) & mask;
  slots_[place] = {static_cast<uint32_t>(code >> 32), static_cast<uint32_t>(word.size()), bytes_.size(), value};
  bytes_ += word;
  ++num_words_;
  return true;
}

int32_t WordTable::find(std::string_view word) const {
  const uint64_t code = hash(word);
  const size_t mask = slots_.size() - 1;
  for (size_t place = code & mask;; place = (place + 1) & mask) {
    const Slot& slot = slots_[place];
    if (slot.value < 0) return -1;
    if (slot.tag == static_cast<uint32_t>(code >> 32) && slot.length == word.size() &&
        std::memcmp(bytes_.data() + slot.begin, word.data(), word.size()) == 0)
      return slot.value;
  }
}

}  // namespace lockstep::text
