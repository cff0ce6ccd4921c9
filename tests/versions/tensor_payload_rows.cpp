// Requests for SGLang with the adapters of the standard input, for tests/interop/test_tensor_payload.py: a row is
// {"adapter": DIRECTORY}.
#include <iostream>
#include <string>

#include "core/json.h"
#include "versions/tensor_payload.h"

int main() {
  using namespace lockstep;
  for (std::string line; std::getline(std::cin, line);) {
    const std::string adapter = Json::parse(line).at("adapter");
    std::cout << versions::tensor_payload(checkpoint::PeftDirectory(adapter)) << "\n";
  }
}
