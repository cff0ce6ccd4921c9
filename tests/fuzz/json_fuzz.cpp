// JSON text: parsed twice, through its own output, it is the same value; every refusal is a FormatError.
#include <cstdint>
#include <cstdlib>

#include "core/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const lockstep::Json value = lockstep::parse_json(text, "input");
    if (lockstep::parse_json(value.dump(), "output") != value) std::abort();
  } catch (const lockstep::FormatError&) {
  }
  return 0;
}
