// A GGUF file read back, from nothing but the format's definition.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::testing {

class GgufReader {
 public:
  struct Tensor {
    std::vector<uint64_t> shape;  // as in the file: the contiguous dimension first
    uint32_t type = 0;
    uint64_t offset = 0;
  };

  explicit GgufReader(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    if (take(4) != "GGUF" || number<uint32_t>() != 3) throw std::runtime_error("no GGUF version 3");
    const auto num_tensors = number<uint64_t>(), num_keys = number<uint64_t>();
    for (uint64_t i = 0; i < num_keys; ++i) read_key();
    for (uint64_t i = 0; i < num_tensors; ++i) {
      const std::string name = string();
      Tensor tensor;
      tensor.shape.resize(number<uint32_t>());
      for (uint64_t& size : tensor.shape) size = number<uint64_t>();
      tensor.type = number<uint32_t>();
      tensor.offset = number<uint64_t>();
      if (!tensors.emplace(name, tensor).second) throw std::runtime_error("two tensors " + name);
    }
    data_ = (at_ + 31) / 32 * 32;
  }

  std::map<std::string, std::string> strings;
  std::map<std::string, double> numbers;  // bools too
  std::map<std::string, std::vector<std::string>> string_lists;
  std::map<std::string, std::vector<int32_t>> integer_lists;
  std::map<std::string, uint32_t> kinds;  // of every key
  std::map<std::string, Tensor> tensors;

  size_t size() const { return bytes_.size(); }
  size_t data_place() const { return data_; }
  static uint64_t elements(const Tensor& tensor) {
    uint64_t product = 1;
    for (const uint64_t size : tensor.shape) product *= size;
    return product;
  }
  static uint64_t tensor_bytes(const Tensor& tensor) {
    switch (tensor.type) {
      case 0: return elements(tensor) * 4;
      case 1:
      case 30: return elements(tensor) * 2;
      case 8: return elements(tensor) / 32 * 34;
      default: throw std::runtime_error("a type nobody wrote");
    }
  }
  std::string raw(const std::string& name) const {
    const Tensor& tensor = tensors.at(name);
    return bytes_.substr(data_ + tensor.offset, tensor_bytes(tensor));
  }

  // All values in order.
  std::vector<float> values(const std::string& name) const {
    const Tensor& tensor = tensors.at(name);
    const std::string bytes = raw(name);
    std::vector<float> out;
    for (uint64_t i = 0; i < elements(tensor); ++i) {
      if (tensor.type == 0) out.push_back(number_at<float>(bytes, i * 4));
      if (tensor.type == 1) out.push_back(half(number_at<uint16_t>(bytes, i * 2)));
      if (tensor.type == 30)
        out.push_back(std::bit_cast<float>(static_cast<uint32_t>(number_at<uint16_t>(bytes, i * 2)) << 16));
      if (tensor.type == 8)
        out.push_back(half(number_at<uint16_t>(bytes, i / 32 * 34)) *
                      static_cast<float>(number_at<int8_t>(bytes, i / 32 * 34 + 2 + i % 32)));
    }
    return out;
  }

  // IEEE 754 binary16.
  static float half(uint16_t bits) {
    const int exponent = bits >> 10 & 31;
    const double fraction = bits & 1023;
    const double size = exponent == 0    ? std::ldexp(fraction, -24)
                        : exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                                         : std::ldexp(1024 + fraction, exponent - 25);
    return static_cast<float>((bits & 0x8000) != 0 ? -size : size);
  }

  template <class T>
  static T number_at(const std::string& bytes, size_t at) {
    T value;
    if (at + sizeof(T) > bytes.size()) throw std::runtime_error("cut off");
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    return value;
  }

 private:
  std::string take(uint64_t count) {
    if (count > bytes_.size() - at_) throw std::runtime_error("cut off");
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  template <class T>
  T number() {
    return number_at<T>(take(sizeof(T)), 0);
  }
  std::string string() { return take(number<uint64_t>()); }

  void read_key() {
    const std::string key = string();
    const auto kind = number<uint32_t>();
    if (!kinds.emplace(key, kind).second) throw std::runtime_error("two keys " + key);
    switch (kind) {
      case 4: numbers[key] = number<uint32_t>(); return;
      case 6: numbers[key] = number<float>(); return;
      case 7: numbers[key] = number<uint8_t>(); return;
      case 8: strings[key] = string(); return;
      case 9: break;
      default: throw std::runtime_error("a kind nobody wrote");
    }
    const auto item = number<uint32_t>();
    for (auto left = number<uint64_t>(); left > 0; --left) {
      if (item == 8)
        string_lists[key].push_back(string());
      else if (item == 5)
        integer_lists[key].push_back(number<int32_t>());
      else
        throw std::runtime_error("a list nobody wrote");
    }
  }

  std::string bytes_;
  size_t at_ = 0, data_ = 0;
};

}  // namespace lockstep::testing
