// A file of torch.save: every byte of every tensor that is accepted can be read; every refusal is a typed error.
#include "checkpoint/torch/torch_file.h"
#include "core/error.h"
#include "input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const lockstep::testing::InputFile input(data, size);
  try {
    const lockstep::checkpoint::TorchTensors file = lockstep::checkpoint::read_torch_file(input.path());
    unsigned sum = 0;
    for (const lockstep::NamedTensor& named : file.tensors) {
      const auto* bytes = static_cast<const unsigned char*>(named.tensor.data);
      for (int64_t i = 0; i < named.tensor.elements() * lockstep::dtype_bytes(named.tensor.dtype); ++i) sum += bytes[i];
    }
    volatile unsigned sink = sum;
    static_cast<void>(sink);
    if (lockstep::checkpoint::torch_file_header(input.path()).size() != file.tensors.size()) std::abort();
  } catch (const lockstep::Error&) {
  }
  return 0;
}
