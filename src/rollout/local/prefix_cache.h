// Blocks of keys and values that were computed before, reused by requests that begin with the same tokens and use the
// same adapter version. They form a tree of full blocks: a block is found under its predecessor by its 16 tokens, which
// are compared (a hash only finds the bucket), so a hit is never another text's. Roots are (base version, adapter
// version): a new version has a new root, so keys of an older one cannot be found.
// One thread.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/attention.h"
#include "lora/adapter.h"
#include "rollout/local/block_pool.h"

namespace lockstep::rollout {

// Holds one reference to each of its blocks. Evicts the least recently used block that only the cache holds.
class PrefixCache {
 public:
  using Node = uint64_t;
  static constexpr Node kNoRoot = 0;  // for requests of an engine without a cache

  explicit PrefixCache(BlockPool& pool) : pool_(pool) {}
  ~PrefixCache() { clear(); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The root for this version on this base; nullptr: for the base alone. Adapter versions are told apart by the object,
  // not by name, number or address: once a version is gone, its root is never found again.
  Node root(lora::BaseVersion base, const std::shared_ptr<const lora::AdapterVersion>& adapter);

  // Appends the cached blocks of these tokens to an empty table, with a reference each, and advances `computed`: whole
  // blocks, at most `most` positions.
  void find(Node root, std::span<const int32_t> tokens, int64_t most, BlockTable& table);
  // Inserts those leading blocks of the table that `tokens` fill and that are computed. Blocks already cached stay.
  void insert(Node root, std::span<const int32_t> tokens, const BlockTable& table);
  bool evict();  // returns one block to the pool; false if there is none that only the cache holds
  void clear();

  int64_t blocks() const { return static_cast<int64_t>(entries_.size()); }
  int64_t idle_blocks() const;  // blocks that only the cache holds
  bool holds(BlockPool::Id block) const {
    return static_cast<size_t>(block) < held_.size() && held_[static_cast<size_t>(block)];
  }

 private:
  using Tokens = std::array<int32_t, kernels::kKvBlock>;
  struct Key {
    Node parent = 0;
    Tokens tokens = {};
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  struct Entry {
    Key key;
    Node node = 0;
    BlockPool::Id block = BlockPool::kNone;
    int64_t children = 0;
    Entry* parent = nullptr;  // nullptr: a root
  };
  using Place = std::list<Entry>::iterator;

  static Key key_of(Node parent, std::span<const int32_t> tokens, int64_t block);
  void touch(std::span<const Place> path);
  void erase(Place place);
  void erase_below(const Entry& entry);

  BlockPool& pool_;
  Node next_node_ = 1;
  std::list<Entry> entries_;  // most recently used first; an entry never comes before its parent
  std::unordered_map<Key, Place, KeyHash> places_;
  struct Root {
    lora::BaseVersion base;
    std::optional<std::weak_ptr<const lora::AdapterVersion>> adapter;  // nullopt: the base alone
    Node node = kNoRoot;
  };
  std::vector<Root> roots_;
  std::vector<bool> held_;  // by block
};

}  // namespace lockstep::rollout
