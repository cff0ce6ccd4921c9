// A file that torch.save wrote of a dictionary of tensors (adapter_model.bin, adapter_model.pt): the ZIP archive of
// today and the row of pickles of before PyTorch 1.6. Read without executing anything (torch/pickle.h).
#pragma once

#include <vector>

#include "core/fs.h"
#include "core/memory.h"
#include "core/named_tensor.h"

namespace lockstep::checkpoint {

// Names, types and shapes without data, in order of the dictionary; the tensors' bytes are not read.
// FormatError naming the file, and the opcode or the tensor: a pickle of anything else than text -> tensor (or
// parameter), a type without a place in DType, more than four dimensions, elements outside their storage or in two
// places of one tensor (expanded), storages whose sizes are not those of the file, big-endian files. A scalar is read
// as [1]. DataError, ConfigError: as fs::File.
NamedTensors torch_file_header(const fs::Path& path, const fs::ReadRoot& root = {});

// With data, rows side by side whatever the strides in the file. Tensors that share a storage may share memory.
// FormatError also where strided tensors would be many times as large as the file.
struct TorchTensors {
  Buffer file;                 // all its bytes
  std::vector<Buffer> copies;  // of what does not lie in it as a tensor could
  NamedTensors tensors;
};
TorchTensors read_torch_file(const fs::Path& path, const fs::ReadRoot& root = {});

}  // namespace lockstep::checkpoint
