#include "rollout/local/prefix_cache.h"

#include <algorithm>

namespace lockstep::rollout {
namespace {

constexpr int64_t kBlock = kernels::kKvBlock;

// Compares objects, not addresses: a control block lives as long as a weak_ptr to it.
bool same_owner(const std::weak_ptr<const lora::AdapterVersion>& a,
                const std::shared_ptr<const lora::AdapterVersion>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

}  // namespace

size_t PrefixCache::KeyHash::operator()(const Key& key) const {
  uint64_t hash = key.parent;
  for (const int32_t token : key.tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return static_cast<size_t>(hash);
}

PrefixCache::Key PrefixCache::key_of(Node parent, std::span<const int32_t> tokens, int64_t block) {
  Key key{.parent = parent};
  std::copy_n(tokens.begin() + block * kBlock, kBlock, key.tokens.begin());
  return key;
}

PrefixCache::Node PrefixCache::root(lora::BaseVersion base,
                                    const std::shared_ptr<const lora::AdapterVersion>& adapter) {
  // Blocks under the root of a version that is gone are never used again, so they are evicted first.
  std::erase_if(roots_, [](const Root& root) { return root.adapter && root.adapter->expired(); });
  for (const Root& root : roots_)
    if (root.base == base && (adapter ? root.adapter && same_owner(*root.adapter, adapter) : !root.adapter))
      return root.node;
  roots_.push_back({.base = base, .node = next_node_++});
  if (adapter) roots_.back().adapter = adapter;
  return roots_.back().node;
}

// Parents last, so that they come before their children in the list.
void PrefixCache::touch(std::span<const Place> path) {
  for (size_t i = path.size(); i-- > 0;) entries_.splice(entries_.begin(), entries_, path[i]);
}

void PrefixCache::find(Node root, std::span<const int32_t> tokens, int64_t most, BlockTable& table) {
  const int64_t blocks = std::min(most, static_cast<int64_t>(tokens.size())) / kBlock;
  std::vector<Place> path;
  for (int64_t b = 0; b < blocks; ++b) {
    const auto found = places_.find(key_of(root, tokens, b));
    if (found == places_.end()) break;
    path.push_back(found->second);
    root = found->second->node;
    pool_.retain(found->second->block);
    table.push(pool_, found->second->block);
  }
  table.computed = static_cast<int64_t>(path.size()) * kBlock;
  touch(path);
}

void PrefixCache::insert(Node root, std::span<const int32_t> tokens, const BlockTable& table) {
  const int64_t positions = std::min(table.computed, static_cast<int64_t>(tokens.size()));
  std::vector<Place> path;
  for (int64_t b = 0; b < positions / kBlock; ++b) {
    const Key key = key_of(root, tokens, b);
    auto [at, is_new] = places_.try_emplace(key);
    if (is_new) {
      Entry* const parent = path.empty() ? nullptr : &*path.back();
      entries_.push_front({.key = key, .node = next_node_++, .block = table[b], .parent = parent});
      at->second = entries_.begin();
      pool_.retain(table[b]);
      if (held_.size() <= static_cast<size_t>(table[b])) held_.resize(static_cast<size_t>(table[b]) + 1);
      held_[static_cast<size_t>(table[b])] = true;
      if (parent) ++parent->children;
    }
    path.push_back(at->second);
    root = at->second->node;
  }
  touch(path);
}

bool PrefixCache::evict() {
  // Entries in use are moved to the front, so that the next search does not visit them again.
  for (size_t left = entries_.size(); left > 0; --left) {
    const Place last = std::prev(entries_.end());
    if (last->children == 0 && pool_.references(last->block) == 1) {
      erase(last);
      return true;
    }
    entries_.splice(entries_.begin(), entries_, last);
  }
  // A request may use blocks below one that it does not use, if it computed its own before that one was inserted.
  const Place idle =
      std::ranges::find_if(entries_, [&](const Entry& entry) { return pool_.references(entry.block) == 1; });
  if (idle == entries_.end()) return false;
  erase_below(*idle);
  erase(idle);
  return true;
}

void PrefixCache::erase(Place place) {
  if (place->parent) --place->parent->children;
  pool_.release(place->block);
  held_[static_cast<size_t>(place->block)] = false;
  places_.erase(place->key);
  entries_.erase(place);
}

void PrefixCache::erase_below(const Entry& entry) {
  while (entry.children > 0) {
    const Place child = std::ranges::find_if(entries_, [&](const Entry& other) { return other.parent == &entry; });
    erase_below(*child);
    erase(child);
  }
}

int64_t PrefixCache::idle_blocks() const {
  return std::count_if(entries_.begin(), entries_.end(),
                       [&](const Entry& entry) { return pool_.references(entry.block) == 1; });
}

void PrefixCache::clear() {
  for (const Entry& entry : entries_) pool_.release(entry.block);
  entries_.clear();
  places_.clear();
  held_.clear();
}

}  // namespace lockstep::rollout
