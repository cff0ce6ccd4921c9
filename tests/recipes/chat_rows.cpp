// Conversations of the standard input, for tests/interop/test_chat_templates.py: a row as `lockstep render` reads it on
// each line, with "template" (a file), "add_generation_prompt" and "continue_final_message". The answer is that
// command's, {"text", "spans"}, or {"error"}: the command stops at the first, and a template refuses many.
#include <iostream>
#include <string>

#include "core/error.h"
#include "recipes/chat.h"

int main() {
  using namespace lockstep;
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const OrderedJson row = OrderedJson::parse(line);
    OrderedJson out;
    try {
      const recipes::ChatOptions options{.template_file = row["template"].get<std::string>()};
      const auto chat_template = recipes::load_chat_template("", options);
      text::ChatInput input = recipes::chat_input(row, "messages", options, "row");
      input.add_generation_prompt = row["add_generation_prompt"].get<bool>();
      input.continue_final_message = row["continue_final_message"].get<bool>();
      const text::Rendered rendered = recipes::render_chat(*chat_template, input, "row");
      out = {{"text", rendered.text}, {"spans", OrderedJson::array()}};
      for (const text::Span& span : rendered.generation_spans) out["spans"].push_back({span.begin, span.end});
    } catch (const Error& error) {
      out["error"] = error.what();
    }
    std::cout << out.dump() << "\n";
  }
}
