// Tensors as Python processes send them to one another: the pickle of a dictionary or a list of names and tensors, with
// their bytes inside, as pickle.dumps makes it of CPU tensors; SGLang's serialized_named_tensors. Read without
// executing anything (torch/pickle.h).
#pragma once

#include <span>
#include <string>

#include "core/error.h"
#include "core/named_tensor.h"

namespace lockstep::checkpoint {

// The pickle holds handles of memory of another process (CUDA IPC, file descriptors, shared memory), not bytes.
class TensorHandles : public FormatError {
 public:
  using FormatError::FormatError;
};

// {name: tensor}, [(name, tensor)], or SGLang's flattened bucket {"flattened_tensor": bytes, "metadata": [name, shape,
// dtype, begin and end of each]}. The tensors lie in `message`, in which bytes are moved to where their type may begin:
// nothing else is read from it afterwards. FormatError naming `where` and the tensor: a pickle of anything else, a
// tensor that is not contiguous, a size that is not the shape's, a name that is there twice, another byte order.
NamedTensors read_tensor_message(std::span<char> message, const std::string& where);

}  // namespace lockstep::checkpoint
