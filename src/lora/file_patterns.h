// The regular expressions of an adapter file: target_modules as a string, the keys of rank_pattern and alpha_pattern.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lora/adapter.h"

namespace lockstep::lora {

// What all expressions of one file cost is bounded together: however many and however hostile, they take seconds.
class FilePatterns {
 public:
  explicit FilePatterns(const LoraConfig& config) : config_(config) {}

  // For each module, whether PEFT's re.fullmatch finds `pattern`, the value of `key`, in its name. Rejects
  // (lora/targets.h), naming `key` and the pattern: not in Python's grammar, too large, too costly.
  std::vector<bool> whole_names(const std::string& pattern, const std::string& key, const std::vector<Module>& modules);

  // The value of each module: of the first pattern that PEFT finds at the end of its name, else `otherwise`. Rejects as
  // above.
  template <class Value>
  std::vector<Value> values(const std::vector<std::pair<std::string, Value>>& patterns, const std::string& key,
                            const std::vector<Module>& modules, Value otherwise) {
    std::vector<Value> values(modules.size(), otherwise);
    std::vector<bool> open(modules.size(), true);
    for (const auto& [pattern, value] : patterns)
      for (const size_t module : take_name_ends(pattern, key, modules, open)) values[module] = value;
    return values;
  }

 private:
  // The open modules whose names end with a match; they are open no more.
  std::vector<size_t> take_name_ends(const std::string& pattern, const std::string& key,
                                     const std::vector<Module>& modules, std::vector<bool>& open);
  template <class Act>
  auto guarded(const std::string& pattern, const std::string& key, const Act& act);

  const LoraConfig& config_;
  int64_t steps_ = 40'000'000;  // about two seconds
};

}  // namespace lockstep::lora
