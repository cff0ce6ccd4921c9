// The regular expressions of an adapter file: target_modules and exclude_modules as strings, layers_pattern, the keys
// of rank_pattern and alpha_pattern.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lora/adapter.h"

namespace lockstep::lora {

// What all expressions of one file cost on the names of one model is bounded together: some steps for each pair of
// modules, because files with an expression for every module are usual. However hostile a file is, it takes half a
// second with 250 modules, and never much more than ten.
class FilePatterns {
 public:
  FilePatterns(const LoraConfig& config, const std::vector<Module>& modules)
      : config_(config), modules_(modules), steps_(affordable_steps(modules.size())) {}

  // For each module, whether PEFT's re.fullmatch finds `pattern`, the value of `key`, in its name. Rejects
  // (lora/targets.h), naming `key` and the pattern: not in Python's grammar, too large, too costly.
  std::vector<bool> whole_names(const std::string& pattern, const std::string& key);

  // For each module, whether PEFT finds a layer's number behind `pattern` in its name. The number itself is the
  // module's `layer`: no name has two. Rejects as above.
  std::vector<bool> numbered_names(const std::string& pattern, const std::string& key);

  // The value of each module: of the first pattern that PEFT finds at the end of its name, else `otherwise`. Rejects as
  // above.
  template <class Value>
  std::vector<Value> values(const std::vector<std::pair<std::string, Value>>& patterns, const std::string& key,
                            Value otherwise) {
    std::vector<Value> values(modules_.size(), otherwise);
    std::vector<bool> open(modules_.size(), true);
    for (const auto& [pattern, value] : patterns)
      for (const size_t module : take_name_ends(pattern, key, open)) values[module] = value;
    return values;
  }

 private:
  // The open modules whose names end with a match; they are open no more.
  std::vector<size_t> take_name_ends(const std::string& pattern, const std::string& key, std::vector<bool>& open);
  template <class Act>
  auto guarded(const std::string& pattern, const std::string& key, const Act& act);

  static int64_t affordable_steps(size_t modules);

  const LoraConfig& config_;
  const std::vector<Module>& modules_;
  int64_t steps_;  // left
};

}  // namespace lockstep::lora
