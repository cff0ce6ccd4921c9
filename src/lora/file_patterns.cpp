#include "lora/file_patterns.h"

#include <algorithm>

#include "core/python_regex.h"
#include "lora/targets.h"

namespace lockstep::lora {

// Calls act() and says of its errors which pattern of which key they are about.
template <class Act>
auto FilePatterns::guarded(const std::string& pattern, const std::string& key, const Act& act) {
  constexpr size_t kLongest = 8192;
  constexpr int64_t kStepsToCompile = 5000;
  if (pattern.size() > kLongest)
    reject(config_, key, key,
           {.what = "a regular expression is too large",
            .got = std::to_string(pattern.size()) + " characters",
            .wanted = "at most " + std::to_string(kLongest)});
  try {
    steps_ -= kStepsToCompile;
    if (steps_ < 0) throw ResourceError({.what = "no steps left", .got = "too many expressions in one file"});
    return act();
  } catch (const FormatError& error) {
    reject(config_, key, key,
           {.what = "a regular expression cannot be read",
            .where = pattern,
            .got = error.fault().got,
            .wanted = error.fault().wanted});
  } catch (const ResourceError& error) {
    reject(config_, key, key,
           {.what = "a regular expression takes too long to match",
            .where = pattern,
            .got = error.fault().got,
            .attempt = "a simpler expression, or a list of module names"});
  }
}

int64_t FilePatterns::affordable_steps(size_t modules) {
  constexpr int64_t kMin = 1'000'000, kMax = 200'000'000, kOfAPair = 150;
  const auto count = static_cast<int64_t>(std::min<size_t>(modules, 1 << 16));
  return std::min(kMax, kMin + kOfAPair * count * count);
}

std::vector<bool> FilePatterns::whole_names(const std::string& pattern, const std::string& key) {
  return guarded(pattern, key, [&] {
    const PythonRegex regex(pattern);
    std::vector<bool> named(modules_.size());
    for (size_t i = 0; i < modules_.size(); ++i) named[i] = regex.fullmatch(modules_[i].name, steps_);
    return named;
  });
}

std::vector<bool> FilePatterns::numbered_names(const std::string& pattern, const std::string& key) {
  return guarded(pattern, key, [&] {
    const PythonRegex regex(".*?\\." + pattern + "\\.(\\d+)\\.");
    std::vector<bool> named(modules_.size());
    for (size_t i = 0; i < modules_.size(); ++i) named[i] = regex.match(modules_[i].name, steps_);
    return named;
  });
}

std::vector<size_t> FilePatterns::take_name_ends(const std::string& pattern, const std::string& key,
                                                 std::vector<bool>& open) {
  return guarded(pattern, key, [&] {
    const PythonRegex regex("(.*\\.)?(" + pattern + ")$");
    std::vector<size_t> named;
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (!open[i] || !regex.match(modules_[i].name, steps_)) continue;
      named.push_back(i);
      open[i] = false;
    }
    return named;
  });
}

}  // namespace lockstep::lora
