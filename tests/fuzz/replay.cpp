// Stands in for libFuzzer: hands every file named on the command line to the target once. A target that throws, crashes
// or hangs fails the test; so does a target without a corpus.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int count, char** names) {
  for (int i = 1; i < count; ++i) {
    std::fprintf(stderr, "%s\n", names[i]);  // the last name before a crash is the input at fault
    std::ifstream file(names[i], std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    if (!file) return std::fprintf(stderr, "cannot read it\n"), 1;
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  LLVMFuzzerTestOneInput(nullptr, 0);
  std::printf("%d inputs\n", count - 1);
  return count > 1 ? 0 : 1;
}
