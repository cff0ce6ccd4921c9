// Encodes lines of standard input "FILE REPEATS" with the tokenizer of argv[1] on one thread, and answers each with the
// seconds of the fastest repeat and the number of tokens. bench/tokenizer.py asks it in turns with a peer.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <limits>
#include <string>

#include "core/error.h"
#include "core/fs.h"
#include "core/json.h"
#include "text/tokenizer.h"

using namespace lockstep;

namespace {

struct Timing {
  double seconds = std::numeric_limits<double>::infinity();
  size_t tokens = 0;
};

Timing fastest(const text::Tokenizer& tokenizer, const std::vector<std::string>& texts, int repeats) {
  Timing best;
  for (int i = 0; i < repeats; ++i) {
    size_t tokens = 0;
    const auto start = std::chrono::steady_clock::now();
    for (const std::string& text : texts) tokens += tokenizer.encode(text).size();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = {std::min(best.seconds, time.count()), tokens};
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tokenizer_bench MODEL_DIRECTORY < requests\n");
    return 2;
  }
  try {
    const auto start = std::chrono::steady_clock::now();
    const text::Tokenizer tokenizer = text::Tokenizer::load(argv[1]);
    const std::chrono::duration<double> load = std::chrono::steady_clock::now() - start;
    std::cout << load.count() << std::endl;
    std::string file;
    for (int repeats = 0; std::cin >> file >> repeats;) {
      const Timing timing = fastest(tokenizer, read_json(file).get<std::vector<std::string>>(), repeats);
      std::cout << timing.seconds << " " << timing.tokens << std::endl;
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
