// A safetensors file: every byte of every tensor that is accepted can be read; every refusal is a typed error.
#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const lockstep::testing::InputFile input(data, size);
  try {
    const lockstep::checkpoint::SafetensorsFile file(input.path());
    unsigned sum = 0;
    for (const lockstep::NamedTensor& named : file.tensors()) {
      if (file.find(named.name) == nullptr) std::abort();
      const auto* bytes = static_cast<const unsigned char*>(named.tensor.data);
      for (size_t i = 0; i < named.bytes(); ++i) sum += bytes[i];
    }
    volatile unsigned sink = sum;
    static_cast<void>(sink);
  } catch (const lockstep::Error&) {
  }
  return 0;
}
