#include "text/bpe.h"

#include <algorithm>
#include <tuple>

namespace lockstep::text {

namespace {
constexpr int32_t kNone = -1;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}
}  // namespace

Bpe::Bpe(std::unordered_map<std::string, int32_t> vocabulary, const std::vector<Merge>& merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank)
    merges_[pair_key(merges[rank].left, merges[rank].right)] = {static_cast<uint32_t>(rank), merges[rank].result};
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = vocabulary_.find(std::string(1, static_cast<char>(byte)));
    byte_ids_[byte] = found == vocabulary_.end() ? kNone : found->second;
  }
}

void Bpe::add_symbols(std::string_view piece, Scratch& scratch) const {
  auto& symbols = scratch.symbols_;
  symbols.clear();
  bool after_unknown = false;
  for (char byte : piece) {
    int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
    const bool unknown = id == kNone;
    if (unknown) {
      if (!options_.unk_id || (after_unknown && options_.fuse_unk)) continue;
      id = *options_.unk_id;
    }
    after_unknown = unknown;
    const int32_t place = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, place - 1, place + 1});
  }
  if (!symbols.empty()) symbols.back().next = kNone;
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
  const auto found = merges_.find(pair_key(left, right));
  if (found == merges_.end()) return;
  scratch.heap_.push_back({found->second.rank, place, left, right, found->second.result});
  std::push_heap(scratch.heap_.begin(), scratch.heap_.end(), kLater);
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (options_.ignore_merges) {
    const auto whole = vocabulary_.find(std::string(piece));
    if (whole != vocabulary_.end()) return ids.push_back(whole->second);
  }
  add_symbols(piece, scratch);
  auto& symbols = scratch.symbols_;
  auto& heap = scratch.heap_;
  heap.clear();
  for (size_t place = 0; place < symbols.size(); ++place) push_pair(scratch, static_cast<int32_t>(place));
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
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) symbols[static_cast<size_t>(left.next)].previous = best.place;
    if (left.previous != kNone) push_pair(scratch, left.previous);
    push_pair(scratch, best.place);
  }
  for (const Scratch::Symbol& symbol : symbols)
    if (symbol.id != kNone) ids.push_back(symbol.id);
}

}  // namespace lockstep::text
