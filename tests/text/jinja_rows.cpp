// Renders templates of the standard input, for the comparison with jinja2 in tests/interop: JSON lines
// {"template", "variables"} become {"text", "spans"} or {"error", "message"}.
#include <iostream>
#include <string>

#include "core/error.h"
#include "text/jinja/template.h"

int main() {
  using lockstep::OrderedJson;
  std::ios::sync_with_stdio(false);
  std::tm now{};
  now.tm_year = 126, now.tm_mon = 6, now.tm_mday = 4, now.tm_wday = 6, now.tm_yday = 184, now.tm_hour = 9;
  for (std::string line; std::getline(std::cin, line);) {
    const OrderedJson row = OrderedJson::parse(line);
    OrderedJson out;
    try {
      const auto made = lockstep::text::jinja::Template::parse(row["template"].get<std::string>(), "template");
      const auto rendered = made.render(row["variables"], {.limits = {}, .now = now});
      out["text"] = rendered.text;
      out["spans"] = OrderedJson::array();
      for (const auto& span : rendered.generation_spans) out["spans"].push_back({span.begin, span.end});
    } catch (const lockstep::Error& error) {
      out["error"] = error.kind();
      out["message"] = error.fault().what;
    }
    std::cout << out.dump() << "\n";
  }
}
