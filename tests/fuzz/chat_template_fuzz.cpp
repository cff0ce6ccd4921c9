// What is done with a chat template beside rendering it: whether it marks the assistant's turns is found in its source
// as the expression {%[-+]?\s*generation\s*[-+]?%} finds it, and a final message that is to be continued is found in
// the rendered text. The input is the template, and behind a zero byte the final message.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/error.h"
#include "text/chat_template.h"
#include "text/split_regex.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  static const text::SplitRegex expression(R"(\{%[-+]?[ \t\n\x0b\f\r]*generation[ \t\n\x0b\f\r]*[-+]?%\})");
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(input.find('\0'), input.size());
  const std::string_view source = input.substr(0, cut), message = input.substr(std::min(cut + 1, input.size()));
  try {
    const auto made = text::ChatTemplate::parse(source, "template");
    std::vector<text::Span> found;
    SearchBudget budget(source.size());
    expression.find(source, found, budget);
    if (made.marks_generation() == found.empty()) std::abort();
    const OrderedJson messages = {{{"role", "user"}, {"content", "hi"}},
                                  {{"role", "assistant"}, {"content", std::string(message)}}};
    made.render({.messages = messages, .continue_final_message = true, .now = std::tm{}},
                {.max_steps = 200'000, .max_bytes = size_t{1} << 24, .max_depth = 300});
  } catch (const Error&) {
  }
  return 0;
}
