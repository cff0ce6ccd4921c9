// The GGUF format, version 3 (github.com/ggml-org/ggml, docs/gguf.md): typed key-values, tensor descriptions, tensors.
// Little endian. Internal to checkpoint; see gguf/writer.h.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

inline constexpr uint32_t kGgufVersion = 3;
inline constexpr uint64_t kGgufAlignment = 32;  // of the tensors' bytes, unless general.alignment says another

// How a tensor's rows are stored; the numbers are ggml's.
enum class GgufType : uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };
const char* gguf_type_name(GgufType type);  // "f32" ...
// general.file_type of a file whose matrices are mostly of this type.
uint32_t gguf_file_type(GgufType type);

// Appends integers, floats and strings (a length of 64 bits and the bytes).
class GgufBytes {
 public:
  void u32(uint32_t value) { integer(value, sizeof(value)); }
  void u64(uint64_t value) { integer(value, sizeof(value)); }
  void f32(float value);
  void string(std::string_view text);
  void byte(uint8_t value) { bytes_ += static_cast<char>(value); }
  void raw(std::string_view bytes) { bytes_ += bytes; }
  void align();  // with zeros
  const std::string& bytes() const { return bytes_; }

 private:
  void integer(uint64_t value, size_t width);

  std::string bytes_;
};

// The key-values, in the order they were added. FormatError for a key that was added before.
class GgufMetadata {
 public:
  void add_u32(const std::string& key, uint32_t value);
  void add_f32(const std::string& key, float value);
  void add_bool(const std::string& key, bool value);
  void add_string(const std::string& key, std::string_view value);
  void add_strings(const std::string& key, std::span<const std::string> values);
  void add_i32s(const std::string& key, std::span<const int32_t> values);

  uint64_t size() const { return keys_.size(); }
  const std::string& bytes() const { return bytes_.bytes(); }

 private:
  void begin(const std::string& key, uint32_t kind);
  void begin_list(const std::string& key, uint32_t kind, size_t count);

  std::set<std::string> keys_;
  GgufBytes bytes_;
};

}  // namespace lockstep::checkpoint
