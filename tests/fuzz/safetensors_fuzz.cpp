// A safetensors file: every byte of every tensor that is accepted can be read; every refusal is a typed error.
#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const lockstep::testing::InputFile input(data, size);
  try {
    const lockstep::checkpoint::SafetensorsFile file(input.path());
    unsigned sum = 0;
    for (const auto& [name, tensor, source] : file.tensors()) {
      if (file.find(name) == nullptr) std::abort();
      const auto* bytes = static_cast<const unsigned char*>(tensor.data);
      for (int64_t i = 0; i < tensor.elements() * lockstep::dtype_bytes(tensor.dtype); ++i) sum += bytes[i];
    }
    volatile unsigned sink = sum;
    static_cast<void>(sink);
  } catch (const lockstep::Error&) {
  }
  return 0;
}
