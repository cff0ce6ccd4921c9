// Label and response of a row, with a zero byte between them: every rule comes to a verdict, the same one twice, and
// says beforehand whether it can use the label.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "rl/reward/rule.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::rl;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(text.find('\0'), text.size());
  const RuleSample sample{.response = text.substr(std::min(cut + 1, text.size())), .label = text.substr(0, cut)};
  const std::string names = rule_names() + "|";
  for (size_t begin = 0, end; (end = names.find('|', begin)) != std::string::npos; begin = end + 1) {
    RewardRule rule = rule_of(std::string_view(names).substr(begin, end - begin)).value();
    rule.overlong_length = rule.overlong_cache = 1;
    const std::optional<double> verdict = grade(rule, sample);
    if (verdict && !std::isfinite(*verdict)) std::abort();
    // A label that is refused gives no verdict; gsm8k reads whatever is there.
    const bool lenient = rule.type == RewardType::gsm8k;
    if (reads_label(rule) && !lenient && !is_gradable(rule, sample.label) && verdict) std::abort();
    if (grade(rule, sample) != verdict) std::abort();
  }
  return 0;
}
