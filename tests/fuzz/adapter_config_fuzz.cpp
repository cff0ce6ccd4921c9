// adapter_config.json of a stranger. An input that begins with '{' is such a file: it is parsed, its regular
// expressions are matched against the modules of a small model within the steps they are given, and what is then
// covered can be saved and read back. Any other input is an expression and, behind a zero byte, a text: what a search
// anchored at both ends finds, one anchored at the start finds too.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/peft_config.h"
#include "core/error.h"
#include "core/python_regex.h"
#include "core/utf8.h"
#include "lora/adapter.h"

namespace {

using namespace lockstep;

std::vector<lora::Module> some_modules() {
  const std::pair<const char*, int64_t> leaves[] = {
      {"self_attn.q_proj", 0}, {"self_attn.k_proj", 0}, {"self_attn.v_proj", 0}, {"self_attn.o_proj", 1},
      {"mlp.gate_proj", 2},    {"mlp.up_proj", 2},      {"mlp.down_proj", 3}};
  std::vector<lora::Module> modules;
  for (int64_t layer = 0; layer < 2; ++layer) {
    int64_t row = 0;
    for (const auto& [name, linear] : leaves) {
      const int64_t site = 4 * layer + linear;
      if (modules.empty() || modules.back().site != site) row = 0;
      const std::string full = "model.layers." + std::to_string(layer) + "." + name;
      modules.push_back({.name = full,
                         .leaf = full.substr(full.rfind('.') + 1),
                         .layer = layer,
                         .site = site,
                         .in = 8,
                         .out = 8,
                         .out_begin = row});
      row += 8;
    }
  }
  return modules;
}

void try_config(std::string_view text) {
  static const std::vector<lora::Module> modules = some_modules();
  const auto layout = lora::resolve_layout(checkpoint::parse_peft_config(text, "adapter_config.json"), modules);
  const std::string saved = checkpoint::peft_config_text(layout->config, layout->config.target_modules, "base");
  const auto again = lora::resolve_layout(checkpoint::parse_peft_config(saved, "saved"), modules);
  if (again->num_parameters != layout->num_parameters || again->pairs.size() != layout->pairs.size()) std::abort();
  for (size_t i = 0; i < layout->pairs.size(); ++i)
    if (again->pairs[i].rank != layout->pairs[i].rank || again->pairs[i].scale != layout->pairs[i].scale) std::abort();
}

void try_expression(std::string_view expression, std::string_view text) {
  const PythonRegex regex(expression);
  constexpr int64_t kSteps = 100'000;
  int64_t whole_steps = kSteps, steps = kSteps;
  if (regex.fullmatch(text, whole_steps) && !regex.match(text, steps)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    if (input.starts_with('{')) return try_config(input), 0;
    const size_t cut = std::min(input.find('\0'), input.size());
    const std::string_view text = input.substr(std::min(cut + 1, input.size()));
    if (valid_utf8_prefix(text) == text.size()) try_expression(input.substr(0, cut), text);  // names of modules are
  } catch (const lockstep::Error&) {
  }
  return 0;
}
