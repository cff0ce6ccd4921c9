// JSON text: both parsers accept the same texts and find the same value, which its own output gives back; every refusal
// is a FormatError.
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "core/json.h"

namespace {

template <class Value, class Parse>
std::optional<Value> parsed(const Parse& parse) {
  try {
    return parse();
  } catch (const lockstep::FormatError&) {
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto value = parsed<Json>([&] { return parse_json(text, "input"); });
  const auto ordered = parsed<OrderedJson>([&] { return parse_ordered_json(text, "input"); });
  if (value.has_value() != ordered.has_value()) std::abort();
  if (!value) return 0;
  if (Json(*ordered) != *value || parse_json(value->dump(), "output") != *value) std::abort();
  if (parse_ordered_json(ordered->dump(), "output") != *ordered) std::abort();
  return 0;
}
