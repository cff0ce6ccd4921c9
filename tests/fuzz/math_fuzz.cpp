// Label and response of a row, with a line break between them: every pair gets a verdict; an answer is itself; equality
// is symmetric but for inequalities, which may stand for intervals.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "rl/reward/extract.h"
#include "rl/reward/math.h"
#include "rl/reward/math_equality.h"
#include "rl/reward/number.h"

namespace {

using lockstep::rl::MathAnswer, lockstep::rl::Work;

bool has_chain(const MathAnswer& answer) {
  if (answer.kind == MathAnswer::Kind::chain) return true;
  for (const MathAnswer& part : answer.parts)
    if (has_chain(part)) return true;
  return false;
}

// With work of its own, so that no verdict depends on the one before.
bool same(const MathAnswer& a, const MathAnswer& b) {
  Work work;
  return lockstep::rl::same_math(a, b, 0, work);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(text.find('\n'), text.size());
  const std::string_view label = text.substr(0, line), response = text.substr(std::min(line + 1, text.size()));
  lockstep::rl::grade_number(response, label);
  lockstep::rl::grade_math(response, label);
  Work work;
  const MathAnswer a = parse_math_answer(label, work), b = parse_math_answer(response, work);
  if (!a.text.empty() && !same(a, a)) std::abort();
  if (!has_chain(a) && !has_chain(b) && same(a, b) != same(b, a)) std::abort();
  if (a.value.known() && !(a.value == a.value)) std::abort();
  return 0;
}
