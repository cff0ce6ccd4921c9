// Tensors that another process sends as a Python pickle, such as SGLang's serialized_named_tensors: a dictionary or a
// list of names and CPU tensors, whose bytes are inside of the pickle. Reading it executes no code of the pickle
// (torch/pickle.h).
#pragma once

#include <span>
#include <string>

#include "core/error.h"
#include "core/named_tensor.h"

namespace lockstep::checkpoint {

// The pickle holds no bytes but handles to memory of another process (CUDA IPC, file descriptors, shared memory).
class TensorHandles : public FormatError {
 public:
  using FormatError::FormatError;
};

// Reads one of three forms: {name: tensor}; [(name, tensor)]; or SGLang's flattened bucket {"flattened_tensor": bytes,
// "metadata": [name, shape, dtype, begin and end of each]}. The result points into `message`. Bytes in it are moved
// where a tensor would not be aligned, so `message` must outlive the result and cannot be parsed a second time.
// FormatError, which names `where` and the tensor: any other pickle, a tensor that is not contiguous, a size that does
// not fit its shape, two tensors of one name, another byte order.
NamedTensors read_tensor_message(std::span<char> message, const std::string& where);

}  // namespace lockstep::checkpoint
