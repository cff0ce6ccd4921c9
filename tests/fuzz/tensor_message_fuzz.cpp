// A pickle of tensors with their bytes inside: every byte of every tensor that is accepted can be read; every refusal
// is a typed error.
#include <cstdint>
#include <string>

#include "checkpoint/torch/tensor_message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string message(reinterpret_cast<const char*>(data), size);
  try {
    unsigned sum = 0;
    for (const lockstep::NamedTensor& named : lockstep::checkpoint::read_tensor_message(message, "input")) {
      const auto* bytes = static_cast<const unsigned char*>(named.tensor.data);
      for (size_t i = 0; i < named.bytes(); ++i) sum += bytes[i];
    }
    volatile unsigned sink = sum;
    static_cast<void>(sink);
  } catch (const lockstep::Error&) {
  }
  return 0;
}
