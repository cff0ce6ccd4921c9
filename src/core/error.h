// core: what every room builds on - errors, tensors, memory, streams, counter-based randomness, files, JSON, logging.
//
//   includes    no other room
//   memory      Buffer owns, Tensor / ConstTensor are views, Arena is a reusable stack of scratch memory
//   threads     a Stream owns the worker threads its ops run on; only the byte counters and cuda/queues.h are global
//
// This header: the one tree of exceptions. A message says what failed, where, got, wanted, try.
// Libraries throw; only app/ catches, prints to stderr and turns the kind into an exit code.
#pragma once

#include <stdexcept>
#include <string>

namespace lockstep {

struct Fault {
  std::string what;        // "tensor has the wrong shape"
  std::string where = {};  // file, row, field, flag
  std::string got = {};
  std::string wanted = {};
  std::string attempt = {};  // what the user can try
};

class Error : public std::runtime_error {
 public:
  // A fault holds text of files unchanged; what() and fault() return it made printable (core/printable.h).
  explicit Error(const Fault& fault);
  const Fault& fault() const { return fault_; }
  virtual const char* kind() const = 0;
  virtual int exit_code() const = 0;

 private:
  Fault fault_;
};

#define LOCKSTEP_ERROR_KIND(Name, code)                 \
  class Name : public Error {                           \
   public:                                              \
    using Error::Error;                                 \
    const char* kind() const override { return #Name; } \
    int exit_code() const override { return code; }     \
  }
LOCKSTEP_ERROR_KIND(ConfigError, 2);  // a flag, an impossible combination
LOCKSTEP_ERROR_KIND(DataError, 3);    // a dataset row, a token outside the vocabulary
LOCKSTEP_ERROR_KIND(FormatError, 4);  // safetensors, config.json, tokenizer.json, adapter_config.json
LOCKSTEP_ERROR_KIND(ShapeError, 5);   // a violated contract of an op or an adapter
LOCKSTEP_ERROR_KIND(DTypeError, 5);
LOCKSTEP_ERROR_KIND(DeviceError, 6);    // CUDA, driver, instruction set
LOCKSTEP_ERROR_KIND(ResourceError, 7);  // memory, blocks, disk, unwritable paths
LOCKSTEP_ERROR_KIND(Cancelled, 130);    // signal or deadline
#undef LOCKSTEP_ERROR_KIND

}  // namespace lockstep
