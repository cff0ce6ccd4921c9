// The tensors of a request for SGLang's /load_lora_adapter_from_tensors, read without Python: for a FakeEngine.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint/peft_directory.h"
#include "core/fs.h"
#include "core/hash.h"
#include "core/json.h"

namespace lockstep::testing {

inline std::string from_base64(const std::string& text) {
  std::string out;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const int digit = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (digit < 0) break;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if ((held += 6) >= 8) out += static_cast<char>(bits >> (held -= 8) & 0xFF);
  }
  return out;
}

struct SentTensor {
  std::string name, bytes;
  std::vector<int64_t> shape;
};

// Of a pickle with one f32 storage and tensors that are parts of it, as torch would call them.
inline std::vector<SentTensor> sent_tensors(const std::string& pickle) {
  std::vector<SentTensor> tensors;
  std::vector<std::string> texts;  // since the last tensor
  std::vector<int64_t> numbers;
  std::string storage;
  for (size_t at = 0; at < pickle.size();) {
    const auto take = [&](size_t count) {
      if (at + count > pickle.size()) throw std::runtime_error("the pickle ends early");
      at += count;
      return pickle.substr(at - count, count);
    };
    const auto number = [&](size_t bytes) {
      uint64_t value = 0;
      const std::string raw = take(bytes);
      std::memcpy(&value, raw.data(), bytes);
      return value;
    };
    switch (take(1)[0]) {
      case '\x80':
      case 'q':
      case 'h': take(1); break;
      case 'c':
        for (int i = 0; i < 2; ++i) texts.push_back(take(pickle.find('\n', at) - at)), take(1);
        break;
      case 'X': texts.push_back(take(number(4))); break;
      case '\x8e':
        if (texts != std::vector<std::string>{"torch.storage", "_load_from_bytes"})
          throw std::runtime_error("the pickle calls something else");
        storage = take(number(8));
        texts.clear();
        break;
      case 'J': numbers.push_back(static_cast<int64_t>(number(4))); break;
      case '\x89': {  // requires_grad: after the storage, the offset, the shape and the strides
        const std::vector<std::string> wanted = {"torch._utils", "_rebuild_tensor_v2"};
        if (texts.size() != 3 || !std::equal(wanted.begin(), wanted.end(), texts.begin() + 1))
          throw std::runtime_error("the pickle calls something else");
        SentTensor tensor{.name = texts[0], .bytes = {}, .shape = {}};
        const size_t rank = (numbers.size() - 1) / 2;
        int64_t elements = 1;
        for (size_t i = 1; i <= rank; ++i) elements *= numbers[i], tensor.shape.push_back(numbers[i]);
        // The data follow the list of storages, ['0'], and their number.
        const size_t list =
            storage.find(std::string("]X\1\0\0\0"
                                     "0a.",
                                     9));
        const size_t from = list + 9 + sizeof(int64_t);
        tensor.bytes = storage.substr(from + static_cast<size_t>(numbers[0]) * sizeof(float),
                                      static_cast<size_t>(elements) * sizeof(float));
        tensors.push_back(std::move(tensor));
        texts.clear(), numbers.clear();
        break;
      }
      case 'R':
        if (texts == std::vector<std::string>{"collections", "OrderedDict"}) texts.clear();
        break;
      default: break;  // what builds tuples and dictionaries
    }
  }
  return tensors;
}

// FakeEngine::read_tensors: checks the checksums and writes a PEFT directory.
inline void write_sent_tensors(const OrderedJson& body, const std::string& directory) {
  const std::vector<SentTensor> sent =
      sent_tensors(from_base64(body["serialized_named_tensors"][0].get<std::string>()));
  NamedTensors tensors;
  for (const SentTensor& one : sent) {
    Sha256 hash;
    hash.update(one.bytes);
    if (body["expected_checksums"].value(one.name, "") != hash.hex())
      throw std::runtime_error(one.name + " is not what its checksum says");
    if (one.shape.size() != 2) throw std::runtime_error(one.name + " is no matrix");
    const ConstTensor tensor(one.bytes.data(), DType::f32, {one.shape[0], one.shape[1]});
    tensors.push_back({.name = one.name, .tensor = tensor});
  }
  const OrderedJson& config = body["config_dict"];
  checkpoint::write_peft_directory(directory, {.rank = config["r"], .alpha = config["lora_alpha"]},
                                   config["target_modules"].get<std::vector<std::string>>(), "", tensors);
}

}  // namespace lockstep::testing
