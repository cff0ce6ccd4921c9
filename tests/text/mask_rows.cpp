// Masks of conversations of the standard input, for the comparison with transformers in tests/interop: JSON lines
// {"tokenizer": DIR, "template", "messages", "kwargs"} become {"ids", "weights"} or {"error"}.
#include <iostream>
#include <map>
#include <string>

#include "core/error.h"
#include "text/loss_mask.h"

int main() {
  using namespace lockstep;
  std::ios::sync_with_stdio(false);
  std::map<std::string, text::Tokenizer> tokenizers;
  for (std::string line; std::getline(std::cin, line);) {
    const OrderedJson row = OrderedJson::parse(line);
    OrderedJson out;
    try {
      const std::string directory = row["tokenizer"].get<std::string>();
      auto found = tokenizers.find(directory);
      if (found == tokenizers.end()) found = tokenizers.emplace(directory, text::Tokenizer::load(directory)).first;
      const auto chat_template = text::ChatTemplate::parse(row["template"].get<std::string>(), "template",
                                                           text::ChatTemplate::special_tokens(directory));
      const text::MaskedTokens tokens = text::assistant_tokens(
          chat_template, found->second, {.messages = row["messages"], .tools = nullptr, .kwargs = row["kwargs"]});
      out = {{"ids", tokens.ids}, {"weights", tokens.weights}};
    } catch (const Error& error) {
      out["error"] = error.what();
    }
    std::cout << out.dump() << "\n";
  }
}
