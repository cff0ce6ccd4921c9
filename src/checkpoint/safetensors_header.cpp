#include "checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/json.h"

namespace lockstep::checkpoint {

namespace {

using Entry = SafetensorsHeader::Entry;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Types in the order of the reference writer, widest first.
constexpr std::array<std::pair<DType, const char*>, 7> kDTypes = {{{DType::i64, "I64"},
                                                                   {DType::f64, "F64"},
                                                                   {DType::f32, "F32"},
                                                                   {DType::i32, "I32"},
                                                                   {DType::bf16, "BF16"},
                                                                   {DType::f16, "F16"},
                                                                   {DType::u8, "U8"}}};

[[noreturn]] void damaged(const std::string& where, std::string what, std::string got, std::string wanted) {
  throw FormatError({.what = std::move(what),
                     .where = where,
                     .got = std::move(got),
                     .wanted = std::move(wanted),
                     .attempt = "the file may be cut off or damaged: copy or download it again"});
}

// Reads the length that stands before the JSON and checks it against the file.
uint64_t json_bytes(std::span<const std::byte> beginning, uint64_t file_bytes, const std::string& where) {
  if (beginning.size() < sizeof(uint64_t))
    damaged(where, "no safetensors file", fmt::format("{} bytes", beginning.size()), "a header of at least 8 bytes");
  uint64_t size = 0;
  for (int i = 7; i >= 0; --i) size = size << 8 | static_cast<uint8_t>(beginning[static_cast<size_t>(i)]);
  const uint64_t available = file_bytes - sizeof(uint64_t);
  if (size > kMaxHeaderBytes || size > available)
    damaged(where, "impossible safetensors header length", fmt::format("{} bytes of {}", size, available),
            fmt::format("at most {}", std::min(kMaxHeaderBytes, available)));
  return size;
}

class HeaderReader {
 public:
  HeaderReader(std::string_view text, uint64_t data_bytes, const std::string& where)
      : text_(text), data_bytes_(data_bytes), where_(where) {}

  // Reads the entries, in the order of their bytes.
  std::vector<Entry> read(std::map<std::string, std::string>& metadata) {
    if (!text_.starts_with('{')) damaged(where_, "invalid safetensors header", "no { at its start", "a JSON object");
    const Json header = parse_json(text_, where_);
    std::vector<Entry> entries;
    for (const auto& [name, value] : JsonObject(header, where_).json().items()) {
      if (name == kSafetensorsMetadataKey)
        read_metadata(value, metadata);
      else
        entries.push_back(read_entry(name, value));
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    check_layout(entries);
    return entries;
  }

 private:
  void read_metadata(const Json& value, std::map<std::string, std::string>& metadata) const {
    const JsonObject object(value, where_ + ": " + kSafetensorsMetadataKey);
    for (const auto& item : value.items()) metadata[item.key()] = object.string(item.key());
  }

  std::vector<uint64_t> read_counts(const JsonObject& entry, const char* key) const {
    const Json& list = entry.value(key);
    std::vector<uint64_t> counts;
    if (!list.is_array())
      throw FormatError({.what = "a value has the wrong type",
                         .where = entry.where() + ": " + key,
                         .got = list.dump().substr(0, 100),
                         .wanted = "a list of counts"});
    for (const Json& item : list) {
      if (!item.is_number_unsigned() || item.get<uint64_t>() > std::numeric_limits<int64_t>::max())
        throw FormatError({.what = "a list holds something that is no count",
                           .where = entry.where() + ": " + key,
                           .got = item.dump().substr(0, 100),
                           .wanted = "integers from 0 to 2^63 - 1"});
      counts.push_back(item.get<uint64_t>());
    }
    return counts;
  }

  Entry read_entry(const std::string& name, const Json& value) const {
    const JsonObject object(value, where_ + ": " + name);
    Entry entry{.name = name, .shape = read_counts(object, "shape")};
    const std::string dtype = object.string("dtype");
    const auto known = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const auto& d) { return dtype == d.second; });
    if (known == kDTypes.end())
      throw FormatError({.what = "unsupported tensor dtype",
                         .where = object.where(),
                         .got = dtype,
                         .wanted = "F32, BF16, F16, F64, I64, I32 or U8"});
    entry.dtype = known->first;
    if (entry.shape.empty()) entry.shape = {1};
    if (entry.shape.size() > 4)
      throw FormatError({.what = "too many tensor dimensions",
                         .where = object.where(),
                         .got = std::to_string(entry.shape.size()),
                         .wanted = "at most 4"});
    const std::vector<uint64_t> offsets = read_counts(object, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      throw FormatError({.what = "invalid data_offsets",
                         .where = object.where(),
                         .got = object.value("data_offsets").dump().substr(0, 100),
                         .wanted = "[begin, end]"});
    entry.begin = offsets[0];
    entry.end = offsets[1];
    check_size(entry);
    return entry;
  }

  void check_size(const Entry& entry) const {
    uint64_t bytes = static_cast<uint64_t>(dtype_bytes(entry.dtype));
    for (uint64_t dim : entry.shape)
      if (__builtin_mul_overflow(bytes, dim, &bytes))
        damaged(where_, "tensor " + entry.name + " is impossibly large",
                fmt::format("{}", fmt::join(entry.shape, " x ")), "less than 2^64 bytes");
    if (bytes != entry.end - entry.begin)
      damaged(where_, "tensor " + entry.name + " has a size that is not its shape",
              std::to_string(entry.end - entry.begin) + " bytes", std::to_string(bytes) + " bytes");
  }

  void check_layout(const std::vector<Entry>& entries) const {
    uint64_t place = 0;
    for (const Entry& entry : entries) {
      if (entry.begin != place)
        damaged(where_, "tensor " + entry.name + " leaves a hole or overlaps another",
                "begin " + std::to_string(entry.begin), "begin " + std::to_string(place));
      place = entry.end;
    }
    if (place != data_bytes_)
      damaged(where_, "the tensors do not fill the file", std::to_string(data_bytes_) + " bytes after the header",
              std::to_string(place) + " bytes");
  }

  std::string_view text_;
  uint64_t data_bytes_;
  const std::string& where_;
};

}  // namespace

const char* safetensors_dtype(DType dtype) {
  return kDTypes[static_cast<size_t>(safetensors_dtype_place(dtype))].second;
}

int safetensors_dtype_place(DType dtype) {
  const auto same = [dtype](const auto& entry) { return entry.first == dtype; };
  return static_cast<int>(std::find_if(kDTypes.begin(), kDTypes.end(), same) - kDTypes.begin());
}

ConstTensor SafetensorsHeader::Entry::tensor(const std::byte* data) const {
  ConstTensor tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = static_cast<int>(shape.size());
  std::transform(shape.begin(), shape.end(), tensor.shape.begin(),
                 [](uint64_t dim) { return static_cast<int64_t>(dim); });
  tensor.row_stride = tensor.row_elements();
  return tensor;
}

SafetensorsHeader::SafetensorsHeader(std::span<const std::byte> beginning, uint64_t file_bytes,
                                     const std::string& where) {
  const uint64_t size = json_bytes(beginning, file_bytes, where);
  bytes = sizeof(uint64_t) + size;
  if (beginning.size() < bytes)
    damaged(where, "the header is cut off", fmt::format("{} bytes", beginning.size()), fmt::format("{}", bytes));
  const std::string_view text(reinterpret_cast<const char*>(beginning.data()) + sizeof(uint64_t), size);
  entries = HeaderReader(text, file_bytes - bytes, where).read(metadata);
}

SafetensorsHeader SafetensorsHeader::read(const fs::File& file) {
  const std::string where = file.path().string();
  std::vector<std::byte> beginning(std::min(sizeof(uint64_t), file.size()));
  file.read(beginning.data(), 0, beginning.size());
  const size_t length = beginning.size();
  beginning.resize(length + json_bytes(beginning, file.size(), where));
  file.read(beginning.data() + length, length, beginning.size() - length);
  return {beginning, file.size(), where};
}

}  // namespace lockstep::checkpoint
