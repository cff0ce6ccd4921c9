// A template of a stranger: whatever it says, it is rendered, refused or stopped, and what it does is charged for what
// it costs: a hundredth of the usual steps is not seconds of work.
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "text/jinja/template.h"

namespace {

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lockstep::OrderedJson;
  static const OrderedJson variables = {
      {"messages",
       {{{"role", "user"}, {"content", "h\xC3\xA9 <b>"}}, {{"role", "assistant"}, {"content", nullptr}, {"n", 2.5}}}},
      {"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", OrderedJson::object()}}}}}},
      {"add_generation_prompt", true},
      {"bos_token", "<s>"},
      {"n", 7}};
  // Small limits keep a run short; those of real renderings are larger, not different. Steps of 20 ns make 10 ms, the
  // sanitizers some fifty times that.
  constexpr double kMaxSeconds = 2;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const double begin = cpu_seconds();
  try {
    const auto made = lockstep::text::jinja::Template::parse(source, "template");
    made.render(variables,
                {.limits = {.max_steps = 500'000, .max_bytes = size_t{1} << 24, .max_depth = 300}, .now = std::tm{}});
  } catch (const lockstep::Error&) {
  }
  if (const double seconds = cpu_seconds() - begin; seconds > kMaxSeconds) {
    std::fprintf(stderr, "%.2f s of work for %d steps\n", seconds, 500'000);
    std::abort();
  }
  return 0;
}
