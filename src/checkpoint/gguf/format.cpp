#include "checkpoint/gguf/format.h"

#include <bit>

#include "core/error.h"

namespace lockstep::checkpoint {

namespace {

// Kinds of values.
constexpr uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9;

}  // namespace

const char* gguf_type_name(GgufType type) {
  switch (type) {
    case GgufType::f32: return "f32";
    case GgufType::f16: return "f16";
    case GgufType::q8_0: return "q8_0";
    case GgufType::bf16: return "bf16";
  }
  return "?";
}

uint32_t gguf_file_type(GgufType type) {
  switch (type) {
    case GgufType::f32: return 0;
    case GgufType::f16: return 1;
    case GgufType::q8_0: return 7;
    case GgufType::bf16: return 32;
  }
  return 0;
}

void GgufBytes::integer(uint64_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 255);
}

void GgufBytes::f32(float value) {
  u32(std::bit_cast<uint32_t>(value));
}

void GgufBytes::string(std::string_view text) {
  u64(text.size());
  raw(text);
}

void GgufBytes::align() {
  bytes_.append((kGgufAlignment - bytes_.size() % kGgufAlignment) % kGgufAlignment, '\0');
}

void GgufMetadata::begin(const std::string& key, uint32_t kind) {
  if (!keys_.insert(key).second) throw FormatError({.what = "a GGUF key would be there twice", .where = key});
  bytes_.string(key);
  bytes_.u32(kind);
}

void GgufMetadata::begin_list(const std::string& key, uint32_t kind, size_t count) {
  begin(key, kArray);
  bytes_.u32(kind);
  bytes_.u64(count);
}

void GgufMetadata::add_u32(const std::string& key, uint32_t value) {
  begin(key, kUint32);
  bytes_.u32(value);
}

void GgufMetadata::add_f32(const std::string& key, float value) {
  begin(key, kFloat32);
  bytes_.f32(value);
}

void GgufMetadata::add_bool(const std::string& key, bool value) {
  begin(key, kBool);
  bytes_.byte(value ? 1 : 0);
}

void GgufMetadata::add_string(const std::string& key, std::string_view value) {
  begin(key, kString);
  bytes_.string(value);
}

void GgufMetadata::add_strings(const std::string& key, std::span<const std::string> values) {
  begin_list(key, kString, values.size());
  for (const std::string& value : values) bytes_.string(value);
}

void GgufMetadata::add_i32s(const std::string& key, std::span<const int32_t> values) {
  begin_list(key, kInt32, values.size());
  for (const int32_t value : values) bytes_.u32(static_cast<uint32_t>(value));
}

}  // namespace lockstep::checkpoint
