// Tensors of files in pieces of f32, whatever their type and size.
#pragma once

#include "core/memory.h"
#include "core/named_tensor.h"
#include "core/stream.h"

namespace lockstep::commands {

class TensorReader {
 public:
  static constexpr int64_t kMax = int64_t{1} << 20;  // elements of a piece
  static bool reads(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

  // Elements [begin, begin + count) of a type that reads() takes; valid until the next call. DataError: the file
  // has become shorter or cannot be read.
  const float* read(const NamedTensor& named, int64_t begin, int64_t count);

 private:
  Stream stream_{{.threads = 1}};
  Buffer stored_, wide_;
};

// The bytes of a tensor of its file in pieces, as above.
bool same_stored_bytes(const NamedTensor& a, const NamedTensor& b);

}  // namespace lockstep::commands
