// Encodes lines of standard input "FILE REPEATS" with the tokenizer of argv[1] on one thread, and answers each with the
// seconds of processor time of the fastest repeat and the number of tokens. bench/tokenizer.py asks it in turns with a
// peer.
#include <cstdio>
#include <ctime>
#include <iostream>
#include <limits>
#include <string>

#include "core/error.h"
#include "core/fs.h"
#include "core/json.h"
#include "text/tokenizer.h"

using namespace lockstep;

namespace {

double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

struct Timing {
  double seconds = std::numeric_limits<double>::infinity();
  size_t tokens = 0;
};

Timing fastest(const text::Tokenizer& tokenizer, const std::vector<std::string>& texts, int repeats) {
  Timing best;
  for (int i = 0; i < repeats; ++i) {
    size_t tokens = 0;
    const double start = processor_seconds();
    for (const std::string& text : texts) tokens += tokenizer.encode(text).size();
    best = {std::min(best.seconds, processor_seconds() - start), tokens};
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
    const double start = processor_seconds();
    const text::Tokenizer tokenizer = text::Tokenizer::load(argv[1]);
    std::cout << processor_seconds() - start << std::endl;
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
