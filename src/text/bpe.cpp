#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <tuple>

#include "core/utf8.h"

namespace lockstep::text {

namespace {

constexpr int32_t kNone = -1;
constexpr size_t kShort = 64;  // symbols; up to here looking at every pair is faster than a heap

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t pair_hash(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15;
  return pair ^ pair >> 29;
}

}  // namespace

Bpe::Bpe(WordTable words, int32_t vocab_size, const std::vector<Merge>& merges, BpeOptions options,
         const std::array<int32_t, 256>& byte_tokens)
    : words_(std::move(words)),
      merges_(std::bit_ceil(std::max<size_t>(16, merges.size() * 2))),
      options_(options),
      byte_tokens_(byte_tokens),
      whole_(static_cast<size_t>(vocab_size)) {
  for (size_t rank = 0; rank < merges.size(); ++rank) set_merge(merges[rank], static_cast<uint32_t>(rank));
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    first_ids_[static_cast<size_t>(byte)] = words_.find({&text, 1});
  }
}

void Bpe::set_merge(const Merge& merge, uint32_t rank) {
  const uint64_t pair = pair_key(merge.left, merge.right);
  const size_t mask = merges_.size() - 1;
  size_t place = pair_hash(pair) & mask;
  while (merges_[place].pair != kNoPair && merges_[place].pair != pair) place = (place + 1) & mask;
  merges_[place] = {pair, {rank, merge.result}};
}

Bpe::Ranked Bpe::find_merge(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t place = pair_hash(pair) & mask;; place = (place + 1) & mask) {
    if (merges_[place].pair == pair) return merges_[place].ranked;
    if (merges_[place].pair == kNoPair) return {kNoRank, kNone};
  }
}

void Bpe::add_bytes(std::string_view piece, Scratch& scratch) const {
  auto& symbols = scratch.symbols_;
  bool after_unknown = false;
  for (char byte : piece) {
    const int32_t id = first_ids_[static_cast<uint8_t>(byte)];
    const bool unknown = id == kNone;
    if (!unknown) {
      symbols.push_back({id, 1, 0, 0});
    } else if (options_.unk_id) {
      if (after_unknown && options_.fuse_unk)
        ++symbols.back().length;
      else
        symbols.push_back({*options_.unk_id, 1, 0, 0});
    }
    after_unknown = unknown;
  }
}

void Bpe::add_characters(std::string_view piece, Scratch& scratch) const {
  auto& symbols = scratch.symbols_;
  // An unknown waits for the next character, with which it may fuse; byte tokens do not make it stop waiting. So the
  // library does.
  uint32_t unknown = 0;  // its bytes
  const auto flush = [&] {
    if (unknown > 0) symbols.push_back({*options_.unk_id, unknown, 0, 0});
    unknown = 0;
  };
  for (size_t place = 0, size = 0; place < piece.size(); place += size) {
    const uint32_t code = code_at(piece.data(), place, size);
    const std::string_view character = piece.substr(place, size);
    const int32_t id = code < 0x80 ? first_ids_[code] : words_.find(character);
    if (id != kNone) {
      flush();
      symbols.push_back({id, static_cast<uint32_t>(size), 0, 0});
      continue;
    }
    const auto token = [&](char byte) { return byte_tokens_[static_cast<uint8_t>(byte)]; };
    if (options_.byte_fallback && std::ranges::all_of(character, [&](char byte) { return token(byte) != kNone; })) {
      for (char byte : character) symbols.push_back({token(byte), 1, 0, 0});
    } else if (options_.unk_id) {
      if (!options_.fuse_unk) flush();
      unknown += static_cast<uint32_t>(size);
    }
  }
  flush();
}

// Looks at every pair for the lowest rank, as often as there is one.
void Bpe::merge_short(Scratch& scratch) const {
  auto& symbols = scratch.symbols_;
  auto& pairs = scratch.pairs_;  // pairs[i]: of symbols i and i + 1
  pairs.resize(symbols.size());
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = find_merge(symbols[i].id, symbols[i + 1].id);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs[best].rank == kNoRank) break;
    symbols[best].id = pairs[best].result;
    symbols[best].length += symbols[best + 1].length;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i] = pairs[i + 1];
    }
    --count;
    if (best > 0) pairs[best - 1] = find_merge(symbols[best - 1].id, symbols[best].id);
    if (best + 1 < count) pairs[best] = find_merge(symbols[best].id, symbols[best + 1].id);
  }
  symbols.resize(count);
}

// Lowest rank first, then leftmost: std::push_heap keeps the largest in front.
static constexpr auto kLater = [](const auto& a, const auto& b) {
  return std::tie(a.rank, a.place) > std::tie(b.rank, b.place);
};

void Bpe::push_pair(Scratch& scratch, int32_t place) const {
  const auto& symbols = scratch.symbols_;
  const int32_t next = symbols[static_cast<size_t>(place)].next;
  if (next == kNone) return;
  const int32_t left = symbols[static_cast<size_t>(place)].id, right = symbols[static_cast<size_t>(next)].id;
  const Ranked found = find_merge(left, right);
  if (found.rank == kNoRank) return;
  scratch.heap_.push_back({found.rank, place, left, right, found.result});
}

void Bpe::merge_long(Scratch& scratch) const {
  auto& symbols = scratch.symbols_;
  auto& heap = scratch.heap_;
  heap.clear();
  const int32_t count = static_cast<int32_t>(symbols.size());
  for (int32_t place = 0; place < count; ++place) {
    Scratch::Symbol& symbol = symbols[static_cast<size_t>(place)];
    symbol.previous = place - 1;
    symbol.next = place + 1 < count ? place + 1 : kNone;
  }
  for (int32_t place = 0; place < count; ++place) push_pair(scratch, place);
  std::make_heap(heap.begin(), heap.end(), kLater);
  const auto push = [&](int32_t place) {
    const size_t before = heap.size();
    push_pair(scratch, place);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), kLater);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), kLater);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[static_cast<size_t>(best.place)];
    // A neighbour was merged since this pair was seen.
    if (left.id != best.left || left.next == kNone || symbols[static_cast<size_t>(left.next)].id != best.right)
      continue;
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    left.id = best.result;
    left.length += right.length;
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) symbols[static_cast<size_t>(left.next)].previous = best.place;
    if (left.previous != kNone) push(left.previous);
    push(best.place);
  }
  std::erase_if(symbols, [](const Scratch::Symbol& symbol) { return symbol.id == kNone; });
}

void Bpe::merge(std::string_view piece, Scratch& scratch) const {
  scratch.symbols_.clear();
  if (options_.byte_level)
    add_bytes(piece, scratch);
  else
    add_characters(piece, scratch);
  if (scratch.symbols_.size() <= kShort)
    merge_short(scratch);
  else
    merge_long(scratch);
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
                 std::vector<uint32_t>* lengths) const {
  const int32_t token = words_.find(piece);
  if (token != kNone) {
    std::atomic<uint8_t>& whole = whole_[static_cast<size_t>(token)];
    uint8_t seen = options_.ignore_merges ? static_cast<uint8_t>(kItself) : whole.load(std::memory_order_relaxed);
    if (seen == kNotSeen) {
      merge(piece, scratch);
      seen =
          scratch.symbols_.size() == 1 && scratch.symbols_[0].id == token && scratch.symbols_[0].length == piece.size()
              ? kItself
              : kOther;
      whole.store(seen, std::memory_order_relaxed);
    }
    if (seen == kItself) {
      ids.push_back(token);
      if (lengths != nullptr) lengths->push_back(static_cast<uint32_t>(piece.size()));
      return;
    }
  }
  merge(piece, scratch);
  for (const Scratch::Symbol& symbol : scratch.symbols_) {
    ids.push_back(symbol.id);
    if (lengths != nullptr) lengths->push_back(symbol.length);
  }
}

}  // namespace lockstep::text
