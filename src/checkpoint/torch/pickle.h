// The part of Python's pickle format that torch.save writes for dictionaries of tensors. Nothing is executed: a pickle
// is a program for a stack machine, and this machine has no instruction that calls anything. What a pickle would call
// becomes a value that says so, if the name is one of those given; all others are refused.
// Internal to checkpoint; see torch/torch_file.h. Source: Python's pickletools.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

struct PickleValue {
  //   none, boolean (integer), integer, text
  //   number    a float; its value is not kept
  //   long_text an integer above 64 bits: its bytes, little endian
  //   tuple, list; dict: keys and values in turn
  //   bytes     `count` of them, at `integer` of the pickle
  //   global    the name in `text`
  //   call      of the global in `text`; items[0] is the tuple of its arguments, items[1] the state it was given, if
  //   any persistent  items[0] is the tuple that the persistent id is
  enum class Kind : uint8_t {
    none,
    boolean,
    integer,
    number,
    long_text,
    text,
    bytes,
    tuple,
    list,
    dict,
    global,
    call,
    persistent
  };
  Kind kind = Kind::none;
  int64_t integer = 0, count = 0;
  std::string text = {};
  std::vector<uint32_t> items = {};  // places of other values
};

// What a pickle may hold beside what torch.save writes to a file.
struct PickleRules {
  bool messages = false;  // bytes, and objects with a state: what travels between processes. Of any size
};

class Pickle {
 public:
  static constexpr size_t kMaxBytes = size_t{32} << 20;  // of one pickle
  static constexpr size_t kMaxValues = size_t{1} << 22;

  // Reads one pickle from the beginning of `bytes`. `globals` are the names that may occur. FormatError naming `where`,
  // the opcode and its offset: an opcode outside the subset, another global, a stack that has run empty, a text that is
  // cut off, too many values.
  Pickle(std::string_view bytes, std::span<const std::string_view> globals, const std::string& where,
         PickleRules rules = {});

  const PickleValue& root() const { return values_[root_]; }
  const PickleValue& at(uint32_t place) const { return values_[place]; }
  size_t bytes() const { return bytes_; }  // behind its last opcode

 private:
  friend class PickleMachine;
  std::vector<PickleValue> values_;
  uint32_t root_ = 0;
  size_t bytes_ = 0;
};

}  // namespace lockstep::checkpoint
