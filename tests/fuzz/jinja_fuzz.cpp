// A template of a stranger: whatever it says, it is rendered, refused or stopped.
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lockstep::OrderedJson;
  static const OrderedJson variables = {
      {"messages",
       {{{"role", "user"}, {"content", "h\xC3\xA9 <b>"}}, {{"role", "assistant"}, {"content", nullptr}, {"n", 2.5}}}},
      {"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", OrderedJson::object()}}}}}},
      {"add_generation_prompt", true},
      {"bos_token", "<s>"},
      {"n", 7}};
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  try {
    const auto made = lockstep::text::jinja::Template::parse(source, "template");
    // Small limits keep a run short; those of real renderings are larger, not different.
    made.render(variables, {.limits = {.steps = 200'000, .bytes = size_t{1} << 24, .depth = 300}, .now = std::tm{}});
  } catch (const lockstep::Error&) {
  }
  return 0;
}
