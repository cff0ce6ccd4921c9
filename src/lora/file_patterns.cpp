#include "lora/file_patterns.h"

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

std::vector<bool> FilePatterns::whole_names(const std::string& pattern, const std::string& key,
                                            const std::vector<Module>& modules) {
  return guarded(pattern, key, [&] {
    const PythonRegex regex(pattern);
    std::vector<bool> named(modules.size());
    for (size_t i = 0; i < modules.size(); ++i) named[i] = regex.fullmatch(modules[i].name, steps_);
    return named;
  });
}

std::vector<size_t> FilePatterns::take_name_ends(const std::string& pattern, const std::string& key,
                                                 const std::vector<Module>& modules, std::vector<bool>& open) {
  return guarded(pattern, key, [&] {
    const PythonRegex regex("(.*\\.)?(" + pattern + ")$");
    std::vector<size_t> named;
    for (size_t i = 0; i < modules.size(); ++i) {
      if (!open[i] || !regex.match(modules[i].name, steps_)) continue;
      named.push_back(i);
      open[i] = false;
    }
    return named;
  });
}

}  // namespace lockstep::lora
